// Read bandwidth of memory: threads read a window of a buffer far larger than any cache, then the next window.
//   bandwidth MEGABYTES SECONDS THREADS...   prints, per thread count, "threads GB/s GB/s"
// The two rates are the median and the 90th percentile of the windows. A window takes a millisecond or two, so that
// some are never interrupted on a busy machine: there the second rate is what the memory can do.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <thread>
#include <vector>

namespace {

using Lane = std::uint64_t __attribute__((vector_size(64)));
constexpr std::size_t kAhead = 8192;  // as the kernels of this project prefetch
constexpr std::size_t kWindow = 32 << 20;
std::atomic<std::uint64_t> g_sum;     // keeps the compiler from dropping the reads

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::uint64_t read_all(const char* data, std::size_t size) {
  Lane a{}, b{}, c{}, d{};
  for (std::size_t i = 0; i + 256 <= size; i += 256) {
    for (int line = 0; line < 4; ++line) __builtin_prefetch(data + i + kAhead + 64 * line);
    const Lane* lanes = reinterpret_cast<const Lane*>(data + i);
    a ^= lanes[0];
    b ^= lanes[1];
    c ^= lanes[2];
    d ^= lanes[3];
  }
  a ^= b ^ c ^ d;
  std::uint64_t sum = 0;
  for (int i = 0; i < 8; ++i) sum ^= a[i];
  return sum;
}

// Threads that read one window together, again and again. The caller is one of them.
class Team {
 public:
  Team(const char* data, int threads) : data_(data), threads_(threads) {
    for (int t = 1; t < threads; ++t) helpers_.emplace_back([this, t] { serve(t); });
  }
  ~Team() {
    stop_ = true;
    ++epoch_;
    for (auto& helper : helpers_) helper.join();
  }
  // Bytes per second over the window that begins at `offset`.
  double read(std::size_t offset) {
    offset_ = offset;
    left_ = threads_;
    const double start = now();
    ++epoch_;
    share(0);
    while (left_ > 0) {}
    return static_cast<double>(kWindow) / (now() - start);
  }

 private:
  void serve(int t) {
    for (unsigned seen = 0;;) {
      while (epoch_ == seen) {}
      ++seen;
      if (stop_) return;
      share(t);
    }
  }
  void share(int t) {
    const std::size_t part = kWindow / threads_ / 256 * 256;
    g_sum += read_all(data_ + offset_ + part * t, part);
    --left_;
  }

  const char* data_;
  int threads_;
  std::atomic<unsigned> epoch_{0};
  std::atomic<int> left_{0};
  std::atomic<bool> stop_{false};
  std::size_t offset_ = 0;
  std::vector<std::thread> helpers_;
};

}  // namespace

int main(int count, char** words) {
  if (count < 4) return 2;
  const std::size_t size = static_cast<std::size_t>(std::atof(words[1]) * 1e6) / kWindow * kWindow;
  const double seconds = std::atof(words[2]);
  void* memory = mmap(nullptr, size + kAhead, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
#ifdef MADV_HUGEPAGE
  madvise(memory, size, MADV_HUGEPAGE);
#endif
  std::memset(memory, 1, size);
  for (int i = 3; i < count; ++i) {
    const int threads = std::atoi(words[i]);
    std::vector<double> rates;
    Team team(static_cast<char*>(memory), threads);
    const double end = now() + seconds;
    for (std::size_t offset = 0; now() < end || rates.size() < 20;) {
      rates.push_back(team.read(offset));
      offset = offset + 2 * kWindow <= size ? offset + kWindow : 0;
    }
    std::sort(rates.begin(), rates.end());
    std::printf("%d %.2f %.2f\n", threads, rates[rates.size() / 2] / 1e9, rates[rates.size() * 9 / 10] / 1e9);
  }
}
