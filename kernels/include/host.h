// host.h -- runs MSL kernel bodies on the CPU with SIMT semantics.
//
// Every GPU thread is a fiber (own stack).  A threadgroup runs on one OS thread: the
// scheduler resumes lanes one after another until each stands at a collective
// (simd_* / threadgroup_barrier / simdgroup_barrier) or has returned.  A collective
// completes only when all 32 lanes of the simdgroup (all threads of the threadgroup for
// a threadgroup_barrier) stand at the SAME source line with the SAME operation; anything
// else is reported as divergence.  The order in which lanes run between collectives is a
// launch option (forward / reverse / seeded shuffle): a kernel whose output depends on it
// has a race (a missing barrier).
#ifndef CHERENKOV_HOST_H
#define CHERENKOV_HOST_H
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <vector>
#if !defined(__x86_64__) && !defined(__aarch64__)
#define MSL_UCONTEXT 1
#endif
#ifdef MSL_UCONTEXT
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#define MSL_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MSL_ASAN 1
#endif
#endif
#ifdef MSL_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

// ======================================================================= scheduler ====
namespace msl_host {

enum State : uint8_t { RUN, WAIT_SIMD, WAIT_TG, DONE };
struct Lane;
typedef void (*Combine)(Lane** lanes);
constexpr int SIMD = 32;
constexpr size_t STACK = 128 * 1024;

struct Lane {
#ifdef MSL_UCONTEXT
  ucontext_t uc;
#else
  void* sp;
#endif
  char* stack;  // low end (above its guard page)
  State state;
  const char* op;
  int line;
  Combine fn;
  uint32_t arg;
  uint32_t tid, lane;
  alignas(16) unsigned char in[32], out[32];
#ifdef MSL_ASAN
  void* fake;
#endif
};

struct LaneIds {  // every attribute MLX knows how to add
  uint32_t dispatch_quadgroups_per_threadgroup, dispatch_simdgroups_per_threadgroup;
  uint32_t dispatch_threads_per_threadgroup[3], grid_origin[3], grid_size[3];
  uint32_t quadgroup_index_in_threadgroup, quadgroups_per_threadgroup;
  uint32_t simdgroup_index_in_threadgroup, simdgroups_per_threadgroup, thread_execution_width;
  uint32_t thread_index_in_quadgroup, thread_index_in_simdgroup, thread_index_in_threadgroup;
  uint32_t thread_position_in_grid[3], thread_position_in_threadgroup[3];
  uint32_t threadgroup_position_in_grid[3], threadgroups_per_grid[3], threads_per_grid[3];
  uint32_t threads_per_simdgroup, threads_per_threadgroup[3];
};
typedef void (*Entry)(void* const* bufs, const LaneIds& ids);

struct Options {
  int32_t order;      // 0 forward, 1 reverse, >=2 seed of a per-phase shuffle
  int32_t workers;    // OS threads
  int32_t tg_limit;   // threadgroup memory limit, bytes (Metal: 32768)
  int32_t stat_reserved;
};
struct Guard { const char* base; size_t len; const char* name; };

struct Sched;
inline thread_local Sched* sched = nullptr;
inline thread_local Lane* cur = nullptr;

#ifndef MSL_UCONTEXT
extern "C" void msl_swap(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.type msl_swap,@function
.globl msl_swap
.hidden msl_swap
msl_swap:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size msl_swap,.-msl_swap
)");
constexpr int SAVED = 6;  // words below the return address
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.type msl_swap,%function
.globl msl_swap
.hidden msl_swap
msl_swap:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size msl_swap,.-msl_swap
)");
#endif
#endif

struct TgBuf { char* raw; size_t size; };

struct Sched {
  Entry entry = nullptr;
  void* const* bufs = nullptr;
  uint32_t grid[3], tg[3], ntg[3];
  Options opt;
  std::vector<Lane> lanes;
  std::vector<LaneIds> ids;
  std::vector<TgBuf> tgmem;  // by declaration site
  std::vector<uint32_t> order;
  uint64_t rng = 1;
  uint32_t gpos[3];
  std::string error;
  uint64_t collectives = 0;
#ifdef MSL_UCONTEXT
  ucontext_t main_uc;
#else
  void* main_sp = nullptr;
#endif
#ifdef MSL_ASAN
  void* fake = nullptr;
  const void* main_stack = nullptr;
  size_t main_size = 0;
#endif
  sigjmp_buf fault;
  const std::vector<Guard>* guards = nullptr;

  ~Sched() {
    for (auto& l : lanes) munmap(l.stack - 4096, STACK + 4096);
    for (auto& t : tgmem) free(t.raw);
  }
  void init() {
    uint32_t n = tg[0] * tg[1] * tg[2];
    lanes.resize(n);
    ids.resize(n);
    for (uint32_t t = 0; t < n; t++) {
      Lane& l = lanes[t];
      char* m = (char*)mmap(nullptr, STACK + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      mprotect(m, 4096, PROT_NONE);
      l.stack = m + 4096;
      l.tid = t;
      l.lane = t % SIMD;
      LaneIds& d = ids[t];
      memset(&d, 0, sizeof d);
      d.thread_position_in_threadgroup[0] = t % tg[0];
      d.thread_position_in_threadgroup[1] = t / tg[0] % tg[1];
      d.thread_position_in_threadgroup[2] = t / (tg[0] * tg[1]);
      d.thread_index_in_threadgroup = t;
      d.thread_index_in_simdgroup = t % SIMD;
      d.simdgroup_index_in_threadgroup = t / SIMD;
      d.thread_index_in_quadgroup = t % 4;
      d.quadgroup_index_in_threadgroup = t / 4;
      d.simdgroups_per_threadgroup = d.dispatch_simdgroups_per_threadgroup = n / SIMD;
      d.quadgroups_per_threadgroup = d.dispatch_quadgroups_per_threadgroup = n / 4;
      d.threads_per_simdgroup = d.thread_execution_width = SIMD;
      for (int i = 0; i < 3; i++) {
        d.threads_per_threadgroup[i] = d.dispatch_threads_per_threadgroup[i] = tg[i];
        d.threadgroups_per_grid[i] = ntg[i];
        d.threads_per_grid[i] = d.grid_size[i] = grid[i];
      }
    }
  }
  uint64_t next() {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
  }
  void make_order(uint32_t n) {
    order.resize(n);
    for (uint32_t i = 0; i < n; i++) order[i] = opt.order == 1 ? n - 1 - i : i;
    if (opt.order >= 2)
      for (uint32_t i = n; i > 1; i--) std::swap(order[i - 1], order[next() % i]);
  }

  void resume(Lane& l);
  static void lane_main();
  bool run_group(uint32_t gx, uint32_t gy, uint32_t gz);
  bool fail(const char* fmt, const Lane* a, const Lane* b) {
    char m[600], who[200];
    auto desc = [&](const Lane* l) {
      auto& d = ids[l->tid];
      snprintf(who, sizeof who, "thread %u (simdgroup %u lane %u) %s%s%s%d", l->tid,
               d.simdgroup_index_in_threadgroup, l->lane, l->state == DONE ? "returned" : "at ",
               l->state == DONE ? "" : (l->op ? l->op : "?"), l->state == DONE ? " after line " : " line ", l->line);
      return std::string(who);
    };
    std::string sa = a ? desc(a) : "", sb = b ? desc(b) : "";
    snprintf(m, sizeof m, "threadgroup (%u,%u,%u): %s: %s%s%s", gpos[0], gpos[1], gpos[2], fmt, sa.c_str(), b ? "  vs  " : "", sb.c_str());
    error = m;
    return false;
  }
};

inline void switch_to_lane(Sched& s, Lane& l) {
#ifdef MSL_ASAN
  __sanitizer_start_switch_fiber(&s.fake, l.stack, STACK);
#endif
#ifdef MSL_UCONTEXT
  swapcontext(&s.main_uc, &l.uc);
#else
  msl_swap(&s.main_sp, l.sp);
#endif
#ifdef MSL_ASAN
  __sanitizer_finish_switch_fiber(s.fake, nullptr, nullptr);
#endif
}
inline void switch_to_main(Sched& s, Lane& l, bool dying) {
#ifdef MSL_ASAN
  __sanitizer_start_switch_fiber(dying ? nullptr : &l.fake, s.main_stack, s.main_size);
#else
  (void)dying;
#endif
#ifdef MSL_UCONTEXT
  swapcontext(&l.uc, &s.main_uc);
#else
  msl_swap(&l.sp, s.main_sp);
#endif
#ifdef MSL_ASAN
  __sanitizer_finish_switch_fiber(l.fake, &s.main_stack, &s.main_size);
#endif
}

inline void Sched::lane_main() {
  Sched& s = *sched;
  Lane& l = *cur;
#ifdef MSL_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &s.main_stack, &s.main_size);
#endif
  s.entry(s.bufs, s.ids[l.tid]);
  l.state = DONE;
  switch_to_main(s, l, true);
  abort();
}

inline void Sched::resume(Lane& l) {
  cur = &l;
  switch_to_lane(*this, l);
}

inline void lane_reset(Lane& l) {
  l.state = RUN;
  l.op = nullptr;
  l.line = 0;
#ifdef MSL_UCONTEXT
  getcontext(&l.uc);
  l.uc.uc_stack.ss_sp = l.stack;
  l.uc.uc_stack.ss_size = STACK;
  l.uc.uc_link = nullptr;
  makecontext(&l.uc, (void (*)())Sched::lane_main, 0);
#elif defined(__x86_64__)
  void** top = (void**)(l.stack + STACK - 64);  // 16-aligned
  *--top = nullptr;                              // so that rsp%16==8 at entry, as after a call
  *--top = (void*)Sched::lane_main;
  top -= SAVED;
  l.sp = top;
#elif defined(__aarch64__)
  char* top = l.stack + STACK - 64 - 160;
  memset(top, 0, 160);
  *(void**)(top + 88) = (void*)Sched::lane_main;  // x30
  l.sp = top;
#endif
}

constexpr size_t RED = 64;
constexpr unsigned char CANARY = 0xA5;

inline bool Sched::run_group(uint32_t gx, uint32_t gy, uint32_t gz) {
  uint32_t n = (uint32_t)lanes.size(), ns = (n + SIMD - 1) / SIMD;
  gpos[0] = gx; gpos[1] = gy; gpos[2] = gz;
  // threadgroup memory starts as NaN / -1 so a read before a write shows
  for (auto& t : tgmem) if (t.raw) memset(t.raw + RED, 0xFF, t.size);
  for (uint32_t t = 0; t < n; t++) {
    LaneIds& d = ids[t];
    const uint32_t g[3] = {gx, gy, gz};
    for (int i = 0; i < 3; i++) {
      d.threadgroup_position_in_grid[i] = g[i];
      d.thread_position_in_grid[i] = g[i] * tg[i] + d.thread_position_in_threadgroup[i];
    }
    lane_reset(lanes[t]);
  }
  std::vector<uint32_t> sgs(ns);
  for (;;) {
    for (uint32_t i = 0; i < ns; i++) sgs[i] = opt.order == 1 ? ns - 1 - i : i;
    if (opt.order >= 2) for (uint32_t i = ns; i > 1; i--) std::swap(sgs[i - 1], sgs[next() % i]);
    for (uint32_t sg : sgs) {
      Lane* L = &lanes[sg * SIMD];
      for (;;) {  // until this simdgroup stands at a threadgroup barrier or is done
        if (opt.order >= 2 || order.size() != SIMD) make_order(SIMD);
        for (uint32_t i : order) if (L[i].state == RUN) resume(L[i]);
        Lane* first = nullptr;
        for (int i = 0; i < SIMD; i++) if (L[i].state == WAIT_SIMD) { first = &L[i]; break; }
        if (!first) break;
        for (int i = 0; i < SIMD; i++)
          if (L[i].state != WAIT_SIMD || L[i].fn != first->fn || L[i].line != first->line)
            return fail("simdgroup divergence at a collective", first, &L[i]);
        Lane* P[SIMD];
        for (int i = 0; i < SIMD; i++) P[i] = &L[i];
        collectives++;
        if (first->fn) first->fn(P);
        for (int i = 0; i < SIMD; i++) L[i].state = RUN;
      }
    }
    Lane* w = nullptr; Lane* d = nullptr;
    for (auto& l : lanes) { if (l.state == WAIT_TG && !w) w = &l; if (l.state == DONE && !d) d = &l; }
    if (!w) break;
    if (d) return fail("threadgroup_barrier not reached by every thread", w, d);
    for (auto& l : lanes) if (l.line != w->line) return fail("threads at different threadgroup_barriers", w, &l);
    for (auto& l : lanes) l.state = RUN;
  }
  for (auto& t : tgmem) {
    if (!t.raw) continue;
    for (size_t i = 0; i < RED; i++)
      if ((unsigned char)t.raw[i] != CANARY || (unsigned char)t.raw[RED + t.size + i] != CANARY)
        return fail("write outside a threadgroup array", nullptr, nullptr);
  }
  return true;
}

inline void* tg_alloc(unsigned site, size_t size) {
  Sched& s = *sched;
  if (s.tgmem.size() <= site) s.tgmem.resize(site + 1, TgBuf{nullptr, 0});
  TgBuf& t = s.tgmem[site];
  if (!t.raw) {
#ifdef MSL_ASAN
    t.raw = (char*)aligned_alloc(64, (2 * RED + size + 63) / 64 * 64);
#else
    t.raw = (char*)aligned_alloc(64, (2 * RED + size + 63) / 64 * 64);
#endif
    t.size = size;
    memset(t.raw, CANARY, 2 * RED + size);
    memset(t.raw + RED, 0xFF, size);
    size_t tot = 0;
    for (auto& x : s.tgmem) tot += x.size;
    if (tot > (size_t)s.opt.tg_limit && s.error.empty()) s.fail("threadgroup memory over the limit", nullptr, nullptr);
  }
  return t.raw + RED;
}

inline void wait(State st, const char* op, Combine fn, int line) {
  Lane& l = *cur;
  l.op = op; l.fn = fn; l.line = line; l.state = st;
  switch_to_main(*sched, l, false);
}

inline void on_fault(int, siginfo_t* si, void*) {
  Sched* s = sched;
  if (!s || !s->guards) { signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); return; }
  const char* a = (const char*)si->si_addr;
  char m[300];
  snprintf(m, sizeof m, "access outside every buffer (address %p)", (void*)a);
  for (auto& g : *s->guards)
    if (a >= g.base - (16 << 20) && a < g.base + g.len + (16 << 20)) {
      snprintf(m, sizeof m, "out-of-bounds access of buffer '%s' (%zu bytes) at byte offset %td", g.name, g.len, a - g.base);
      if (a >= g.base && a < g.base + g.len) snprintf(m, sizeof m, "write to input buffer '%s' at byte offset %td", g.name, a - g.base);
      break;
    }
  s->fail(m, cur, nullptr);
  siglongjmp(s->fault, 1);
}

struct Buf { void* data; size_t nbytes; int32_t output; const char* name; };

// Copies each buffer so that it ends at an inaccessible page (element/16-byte alignment kept).
struct Guarded {
  struct M { char* map; size_t len; char* p; };
  std::vector<M> ms;
  std::vector<Guard> guards;
  std::vector<void*> ptrs;
  const Buf* b; int n;
  Guarded(const Buf* b, int n) : b(b), n(n) {
    for (int i = 0; i < n; i++) {
      size_t sz = b[i].nbytes, pad = (sz + 15) / 16 * 16, body = (pad + 4095) / 4096 * 4096;
      if (!body) body = 4096;
      constexpr size_t G = 16 << 20;  // inaccessible bytes on both sides (address space only)
      size_t len = body + 2 * G;
      char* m = (char*)mmap(nullptr, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      mprotect(m + G, body, PROT_READ | PROT_WRITE);
      char* p = m + G + body - pad;
      if (b[i].output) memset(p, 0xFF, pad);
      memcpy(p, b[i].data, b[i].output ? 0 : sz);
      if (!b[i].output) mprotect(m + G, body, PROT_READ);
      ms.push_back({m, len, p});
      guards.push_back({p, sz, b[i].name});
      ptrs.push_back(p);
    }
  }
  void copy_back() { for (int i = 0; i < n; i++) if (b[i].output) memcpy(b[i].data, ms[i].p, b[i].nbytes); }
  ~Guarded() { for (auto& m : ms) munmap(m.map, m.len); }
};

inline int launch(Entry entry, const Buf* b, int nb, const uint32_t* grid, const uint32_t* tgs, const Options& opt,
                  int guard, uint64_t* stats, char* err, size_t errlen) {
  auto bad = [&](const char* m) { snprintf(err, errlen, "%s", m); return 1; };
  uint32_t ntg[3];
  for (int i = 0; i < 3; i++) {
    if (!tgs[i] || !grid[i]) return bad("empty grid or threadgroup");
    if (grid[i] % tgs[i]) return bad("dialect: grid must be a multiple of the threadgroup in every dimension");
    ntg[i] = grid[i] / tgs[i];
  }
  uint32_t n = tgs[0] * tgs[1] * tgs[2];
  if (n > 1024) return bad("more than 1024 threads per threadgroup");
  if (n % SIMD) return bad("dialect: threads per threadgroup must be a multiple of 32");
  Guarded* g = guard ? new Guarded(b, nb) : nullptr;
  std::vector<void*> raw;
  for (int i = 0; i < nb; i++) raw.push_back(b[i].data);
  void* const* bufs = g ? g->ptrs.data() : raw.data();
  struct sigaction old {}, oldb {};
  if (g) {
    struct sigaction sa {};
    sa.sa_sigaction = on_fault;
    sa.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGSEGV, &sa, &old);
    sigaction(SIGBUS, &sa, &oldb);
  }
  std::atomic<uint64_t> nextg{0}, colls{0};
  std::atomic<int> failed{0};
  std::string first;
  std::atomic_flag lock = ATOMIC_FLAG_INIT;
  uint64_t total = (uint64_t)ntg[0] * ntg[1] * ntg[2];
  auto work = [&](int w) {
    Sched s;
    s.entry = entry; s.bufs = bufs; s.opt = opt;
    s.rng = 0x9E3779B97F4A7C15ull * (uint64_t)(opt.order + 1) + (uint64_t)w * 77;
    for (int i = 0; i < 3; i++) { s.grid[i] = grid[i]; s.tg[i] = tgs[i]; s.ntg[i] = ntg[i]; }
    s.guards = g ? &g->guards : nullptr;
    s.init();
    sched = &s;
    // the fault handler needs a stack of its own (a fiber may have run off its end)
    std::vector<char> alt(64 * 1024);
    stack_t ss{}, oss{};
    ss.ss_sp = alt.data(); ss.ss_size = alt.size();
    if (g) sigaltstack(&ss, &oss);
    if (sigsetjmp(s.fault, 0) == 0) {
      for (;;) {
        uint64_t i = nextg.fetch_add(1);
        if (i >= total || failed.load()) break;
        uint64_t j = opt.order == 1 ? total - 1 - i : i;
        if (!s.run_group(j % ntg[0], j / ntg[0] % ntg[1], j / ((uint64_t)ntg[0] * ntg[1])) || !s.error.empty()) break;
      }
    }
    if (g) { oss.ss_flags = oss.ss_flags & SS_DISABLE ? SS_DISABLE : 0; sigaltstack(&oss, nullptr); }
    colls += s.collectives;
    if (!s.error.empty()) {
      failed = 1;
      while (lock.test_and_set()) {}
      if (first.empty()) first = s.error;
      lock.clear();
    }
    sched = nullptr;
  };
  int nw = opt.workers < 1 ? 1 : opt.workers;
  if ((uint64_t)nw > total) nw = (int)total;
  std::vector<std::thread> th;
  for (int w = 1; w < nw; w++) th.emplace_back(work, w);
  work(0);
  for (auto& t : th) t.join();
  if (g) {
    sigaction(SIGSEGV, &old, nullptr);
    sigaction(SIGBUS, &oldb, nullptr);
    if (!failed) g->copy_back();
    delete g;
  }
  if (stats) { stats[0] = total; stats[1] = total * n; stats[2] = colls; }
  if (failed) return bad(first.c_str());
  return 0;
}

}  // namespace msl_host

// ============================================================================ types ====
#define MSL_FN inline
namespace metal {
// 16-bit floats convert only explicitly, as the dialect demands (float(x), T(x)).
// MSL_NATIVE16: also implicitly to float, to try foreign kernels (no 16-bit arithmetic either way).
#ifdef MSL_NATIVE16
#define MSL_EXPLICIT
#else
#define MSL_EXPLICIT explicit
#endif
struct half {
  uint16_t bits;
  half() = default;
  explicit half(float f) {  // round to nearest even; no _Float16 (clang < 15 lacks it on x86)
    uint32_t u; memcpy(&u, &f, 4);
    uint32_t s = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) bits = (uint16_t)(s | 0x7e00u);
    else if (a >= 0x477ff000u) bits = (uint16_t)(s | 0x7c00u);  // rounds past 65504: infinity
    else if (a < 0x38800000u) {                                 // subnormal half or zero
      float m; memcpy(&m, &a, 4);
      bits = (uint16_t)(s | (uint32_t)nearbyintf(m * 16777216.0f));
    } else bits = (uint16_t)(s | ((a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13));
  }
  MSL_EXPLICIT operator float() const {
    uint32_t s = (uint32_t)(bits & 0x8000u) << 16, e = bits >> 10 & 31u, m = bits & 0x3ffu, u;
    float f;
    if (e == 0) { f = (float)m * 5.9604644775390625e-8f; memcpy(&u, &f, 4); u |= s; }
    else u = s | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13;
    memcpy(&f, &u, 4);
    return f;
  }
};
struct bfloat {
  uint16_t bits;
  bfloat() = default;
  explicit bfloat(float f) {  // round to nearest even, NaN kept
    uint32_t u; memcpy(&u, &f, 4);
    bits = (u & 0x7fffffffu) > 0x7f800000u ? (uint16_t)(u >> 16 | 0x40) : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  MSL_EXPLICIT operator float() const { uint32_t u = (uint32_t)bits << 16; float f; memcpy(&f, &u, 4); return f; }
};
typedef half float16_t;
typedef bfloat bfloat16_t;
}  // namespace metal
#include "shared.h"

// ====================================================================== collectives ====
namespace metal {
namespace detail {
template <typename T> T get(msl_host::Lane* l) { T v; memcpy(&v, l->in, sizeof(T)); return v; }
template <typename T> void put(msl_host::Lane* l, T v) { memcpy(l->out, &v, sizeof(T)); }
// butterfly 1,2,4,8,16: the same tree as simd_shuffle_xor written out, and as cuda.h
template <typename T, typename F> void reduce(msl_host::Lane** L) {
  T v[32], t[32];
  for (int i = 0; i < 32; i++) v[i] = get<T>(L[i]);
  for (int o = 1; o < 32; o <<= 1) {
    for (int i = 0; i < 32; i++) t[i] = F::f(v[i], v[i ^ o]);
    memcpy(v, t, sizeof v);
  }
  for (int i = 0; i < 32; i++) put<T>(L[i], v[i]);
}
template <typename T, typename F> void permute(msl_host::Lane** L) {
  for (int i = 0; i < 32; i++) { int j = F::src(i, (int)L[i]->arg); put<T>(L[i], get<T>(L[(j < 0 || j > 31) ? i : j])); }
}
template <typename T> T coll(const char* op, T v, uint32_t arg, msl_host::Combine fn, int line) {
  static_assert(sizeof(T) <= 32, "");
  msl_host::Lane* l = msl_host::cur;
  memcpy(l->in, &v, sizeof(T));
  l->arg = arg;
  msl_host::wait(msl_host::WAIT_SIMD, op, fn, line);
  T r; memcpy(&r, l->out, sizeof(T)); return r;
}
struct Sum { template <typename T> static T f(T a, T b) { return T(a + b); } };
struct Prod { template <typename T> static T f(T a, T b) { return T(a * b); } };
struct Max { template <typename T> static T f(T a, T b) { return max(a, b); } };
struct Min { template <typename T> static T f(T a, T b) { return min(a, b); } };
struct Or { template <typename T> static T f(T a, T b) { return T(a | b); } };
struct And { template <typename T> static T f(T a, T b) { return T(a & b); } };
struct Idx { static int src(int, int a) { return a; } };
struct Xor { static int src(int i, int a) { return i ^ a; } };
struct Down { static int src(int i, int a) { return i + a; } };
struct Up { static int src(int i, int a) { return i - a; } };
}  // namespace detail
#define MSL_LINE int line_ = __builtin_LINE()
#define MSL_RED(name, F) template <typename T> inline T name(T v, MSL_LINE) { \
  return detail::coll<T>(#name, v, 0, detail::reduce<T, detail::F>, line_); }
MSL_RED(simd_sum, Sum) MSL_RED(simd_product, Prod) MSL_RED(simd_max, Max) MSL_RED(simd_min, Min)
MSL_RED(simd_or, Or) MSL_RED(simd_and, And)
#undef MSL_RED
#define MSL_SHUF(name, F) template <typename T> inline T name(T v, ushort a, MSL_LINE) { \
  return detail::coll<T>(#name, v, a, detail::permute<T, detail::F>, line_); }
MSL_SHUF(simd_shuffle, Idx) MSL_SHUF(simd_broadcast, Idx) MSL_SHUF(simd_shuffle_xor, Xor)
MSL_SHUF(simd_shuffle_down, Down) MSL_SHUF(simd_shuffle_up, Up)
#undef MSL_SHUF
template <typename T> inline T simd_broadcast_first(T v, MSL_LINE) {
  return detail::coll<T>("simd_broadcast_first", v, 0, detail::permute<T, detail::Idx>, line_);
}
inline bool simd_any(bool b, MSL_LINE) { return detail::coll<uint>("simd_any", b, 0, detail::reduce<uint, detail::Or>, line_) != 0; }
inline bool simd_all(bool b, MSL_LINE) { return detail::coll<uint>("simd_all", b, 0, detail::reduce<uint, detail::And>, line_) != 0; }
template <typename T> inline T simd_prefix_inclusive_sum(T v, MSL_LINE) {
  return detail::coll<T>("simd_prefix_inclusive_sum", v, 0, [](msl_host::Lane** L) {
    T s = T(0); for (int i = 0; i < 32; i++) { s = s + detail::get<T>(L[i]); detail::put<T>(L[i], s); } }, line_);
}
template <typename T> inline T simd_prefix_exclusive_sum(T v, MSL_LINE) {
  return detail::coll<T>("simd_prefix_exclusive_sum", v, 0, [](msl_host::Lane** L) {
    T s = T(0); for (int i = 0; i < 32; i++) { T x = detail::get<T>(L[i]); detail::put<T>(L[i], s); s = s + x; } }, line_);
}
inline void threadgroup_barrier(mem_flags, MSL_LINE) { msl_host::wait(msl_host::WAIT_TG, "threadgroup_barrier", nullptr, line_); }
inline void simdgroup_barrier(mem_flags, MSL_LINE) { msl_host::wait(msl_host::WAIT_SIMD, "simdgroup_barrier", nullptr, line_); }

// ---- device atomics, relaxed ----------------------------------------------------------
enum memory_order { memory_order_relaxed };
template <typename T> struct atomic { T v; };
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
typedef atomic<float> atomic_float;
template <typename T> inline T atomic_fetch_add_explicit(atomic<T>* p, T x, memory_order) {
  T o, n;
  __atomic_load(&p->v, &o, __ATOMIC_RELAXED);
  do n = o + x; while (!__atomic_compare_exchange(&p->v, &o, &n, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return o;
}

// ---- simdgroup_matrix 8x8 (Apple's lane layout, two elements a lane) ------------------
template <typename T, int R, int C> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "8x8 only");
  T e[2];
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T s) : e{s, s} {}
  T* thread_elements() { return e; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
namespace detail {
inline int sm_row(int l) { int q = l / 4; return (q & 4) + (l / 2) % 4; }
inline int sm_col(int l) { int q = l / 4; return (q & 2) * 2 + (l % 2) * 2; }
}  // namespace detail
template <typename T> inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* p, ulong ld = 8, MSL_LINE) {
  simdgroup_barrier(mem_flags::mem_none, line_);
  int l = (int)msl_host::cur->lane;
  for (int i = 0; i < 2; i++) m.e[i] = p[(ulong)detail::sm_row(l) * ld + (ulong)(detail::sm_col(l) + i)];
}
template <typename T> inline void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* p, ulong ld = 8, MSL_LINE) {
  simdgroup_barrier(mem_flags::mem_none, line_);
  int l = (int)msl_host::cur->lane;
  for (int i = 0; i < 2; i++) p[(ulong)detail::sm_row(l) * ld + (ulong)(detail::sm_col(l) + i)] = m.e[i];
}
template <typename T>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<T, 8, 8>& d, const simdgroup_matrix<T, 8, 8>& a,
                                          const simdgroup_matrix<T, 8, 8>& b, const simdgroup_matrix<T, 8, 8>& c, MSL_LINE) {
  struct P { T a[2], b[2], c[2]; } p{{a.e[0], a.e[1]}, {b.e[0], b.e[1]}, {c.e[0], c.e[1]}};
  P r = detail::coll<P>("simdgroup_multiply_accumulate", p, 0, [](msl_host::Lane** L) {
    T A[8][8], B[8][8], D[8][8];
    for (int l = 0; l < 32; l++) { P q = detail::get<P>(L[l]); int r = detail::sm_row(l), c = detail::sm_col(l);
      for (int i = 0; i < 2; i++) { A[r][c + i] = q.a[i]; B[r][c + i] = q.b[i]; D[r][c + i] = q.c[i]; } }
    for (int r = 0; r < 8; r++) for (int c = 0; c < 8; c++) { T s = D[r][c]; for (int k = 0; k < 8; k++) s += A[r][k] * B[k][c]; D[r][c] = s; }
    for (int l = 0; l < 32; l++) { int r = detail::sm_row(l), c = detail::sm_col(l); P q{}; q.a[0] = D[r][c]; q.a[1] = D[r][c + 1]; detail::put<P>(L[l], q); }
  }, line_);
  d.e[0] = r.a[0]; d.e[1] = r.a[1];
}
}  // namespace metal

// ================================================================= language keywords ====
#define MSL_TG_DECL(T, name, dims) T(&name) dims = *reinterpret_cast<T(*) dims>(msl_host::tg_alloc(__COUNTER__, sizeof(T dims)))
#define device
#define constant
#define thread
#define threadgroup
#define METAL_FUNC inline
#endif
