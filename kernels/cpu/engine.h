// What every operation runs on: kernels, threads, scratch memory; and how work is cut among the threads.
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels.h"
#include "scratch.h"
#include "steal_pool.h"

namespace cherenkov::cpu {

// What turns a position's queries and keys.
struct Angles {
    int position = -1;
    std::vector<float> frequencies, cosines, sines;
};

struct Engine {
    Engine(const Kernels& kernels, Precision precision, int threads)
        : k(kernels), usual(precision), precision(precision), pool(threads), angles(static_cast<size_t>(threads)) {}

    const Kernels& k;
    const Precision usual;
    Precision precision;  // of activations, now: guesses make do with less than usual
    StealPool pool;
    Scratch scratch;
    // What the operation after this one reads first, if whoever runs both says so.
    struct Later {
        std::array<const Weights*, 2> matrices{};
        const float* norm = nullptr;
        size_t norm_bytes = 0;
    } later;
    // Tells idle threads of it, and asks memory for the norm's weights, which this thread will use.
    void expect_later() {
        pool.ahead.expect(later.matrices);
        prefetch<2>(later.norm, later.norm_bytes);
    }
    std::vector<Angles> angles;  // that each thread computed last, of a row
    Angles block_angles;         // of a block's first row
    // If there is one, the calling thread asks it before every chunk: once it says true, nothing that was not begun is
    // computed any more, and the operation throws Halted. For rehearsals, whose results nobody misses; what they change all the
    // same, they change in one go (see Whole).
    std::function<bool()> halt;
    std::atomic<bool> halted{false};
    bool stops(int thread) {
        if (thread == 0 && !halted.load(std::memory_order_relaxed) && halt()) halted.store(true, std::memory_order_relaxed);
        return halted.load(std::memory_order_relaxed);
    }
    std::mutex turn;  // operations run one at a time, whichever thread asks
};

// A rehearsal that is not worth finishing.
struct Halted {};

// Runs f, and gives it up when `halt` says so. Was it done?
template <typename F>
bool with_halt(Engine& e, std::function<bool()> halt, const F& f) {
    struct Over {
        Engine& e;
        ~Over() { e.halt = nullptr, e.halted = false; }
    } over{e};
    e.halt = std::move(halt);
    try {
        f();
    } catch (const Halted&) {
        return false;
    }
    return true;
}

// For as long as this lives, nothing is given up half way.
class Whole {
public:
    explicit Whole(Engine& e) : e_(e), halt_(std::exchange(e.halt, nullptr)) {}
    ~Whole() { e_.halt = std::move(halt_); }
    Whole(const Whole&) = delete;
    Whole& operator=(const Whole&) = delete;

private:
    Engine& e_;
    std::function<bool()> halt_;
};

// Puts back, when it goes, what was to come: a rehearsal or a guess has other things to come than what goes on behind it.
struct KeepLater {
    Engine& e;
    const Engine::Later later;
    ~KeepLater() { e.later = later; }
};

// Work on `size` outputs that may be cut anywhere; each costs `cost`, in bytes of matrix read or as much time.
struct Task {
    int size = 0;
    size_t cost = 0;
    size_t most = 0;  // outputs in a chunk, if not 0: keeps what a chunk reads repeatedly in the cache
    size_t quantum = 4;  // outputs that kernels take at a time
};

// Of a matrix: outputs of `bytes` each, for so many input rows.
Task matrix_task(int outputs, size_t bytes, int rows);

// Cuts tasks into chunks of about equal cost, too few to be worth it staying whole.
class Cuts {
public:
    Cuts(Engine& engine, const Task* tasks, int count);
    int chunks() const { return chunks_; }
    // The task a chunk belongs to, and its outputs.
    struct Piece {
        int task, first, last;
    };
    Piece piece(int chunk) const;

private:
    const Task* tasks_;
    int count_;
    int chunks_ = 0;
    int* steps_;   // outputs a chunk, by task
    int* begins_;  // first chunk, by task
};

// Calls f(task, first, last, thread) until every output of every task is covered once; in parallel if it pays.
template <typename F>
void in_pieces(Engine& e, const Task* tasks, int count, const F& f) {
    const Cuts cuts(e, tasks, count);
    e.pool.run(cuts.chunks(), [&](int chunk, int thread) {
        if (e.halt && e.stops(thread)) return;
        const Cuts::Piece piece = cuts.piece(chunk);
        f(piece.task, piece.first, piece.last, thread);
    });
    if (e.halt && e.halted.load(std::memory_order_relaxed)) throw Halted{};
}

// Rows of activations, packed once for each form that some matrix wants.
class Inputs {
public:
    Inputs(Engine& engine, const float* x, size_t stride, int rows, int cols)
        : e_(engine), x_(x), stride_(stride), rows_(rows), cols_(cols) {}

    int rows() const { return rows_; }
    // Packs the rows as `w` wants them, unless they are already. Not inside a parallel region.
    void prepare(const Weights& w);
    // Row r for `w`, after prepare(w).
    const void* row(const Weights& w, int r) const;

private:
    struct Form {
        Packing packing;
        std::byte* data;
        size_t stride;
    };
    Engine& e_;
    const float* x_;
    size_t stride_;
    int rows_;
    int cols_;
    int count_ = 0;
    Form forms_[5];  // three forms of codes and bytes with two group sizes are the most there can be
};

// One matrix times rows: y[r * stride + n].
struct Product {
    const Weights* w;
    Inputs* x;
    float* y;
    size_t stride;
};

// Outputs [first, last) of a product, for all rows.
struct Outputs {
    int product, first, last;
};

// All products in one parallel region. after(Outputs) runs on the thread that finished a piece, while it is warm;
// before(Outputs) before it begins, to ask memory for what `after` will want.
template <typename F, typename G>
void multiply(Engine& e, const Product* products, int count, const F& after, const G& before) {
    Row** rows = e.scratch.take<Row*>(static_cast<size_t>(count));
    Task* tasks = e.scratch.take<Task>(static_cast<size_t>(count));
    for (int p = 0; p < count; p++) {
        const Product& product = products[p];
        const int n = product.x->rows();
        product.x->prepare(*product.w);
        rows[p] = e.scratch.take<Row>(static_cast<size_t>(n));
        for (int r = 0; r < n; r++)
            rows[p][r] = {product.x->row(*product.w, r), product.y + static_cast<size_t>(r) * product.stride};
        tasks[p] = matrix_task(product.w->rows, product.w->row_bytes(), n);
    }
    in_pieces(e, tasks, count, [&](int p, int first, int last, int) {
        const Product& product = products[p];
        before(Outputs{p, first, last});
        e.k.multiply(*product.w, e.precision, rows[p], product.x->rows(), first, last);
        after(Outputs{p, first, last});
    });
}

template <typename F>
void multiply(Engine& e, const Product* products, int count, const F& after) {
    multiply(e, products, count, after, [](Outputs) {});
}

inline void multiply(Engine& e, const Product* products, int count) {
    multiply(e, products, count, [](Outputs) {});
}

}  // namespace cherenkov::cpu
