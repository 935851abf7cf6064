// Time ggml's products as children/operations.py times the others, in its repacked Q4_0, its fastest 4-bit form.
//   ggml_operations THREADS SECONDS COPIES_BYTES NAME:ROWS:COLS:BATCH,BATCH… …   prints one JSON object
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

// The buffer type in which llama.cpp keeps Q4_0 weights; plain memory where this processor has no repacked form.
ggml_backend_buffer_type_t repacked() {
  ggml_backend_reg_t reg = ggml_backend_cpu_reg();
  auto* list = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts"));
  if (list != nullptr)
    for (auto* type = list(ggml_backend_reg_dev_get(reg, 0)); type != nullptr && *type != nullptr; ++type)
      if (std::strstr(ggml_backend_buft_name(*type), "REPACK") != nullptr) return *type;
  return ggml_backend_cpu_buffer_type();
}

ggml_context* context(std::size_t tensors) {
  return ggml_init({ggml_tensor_overhead() * tensors + ggml_graph_overhead(), nullptr, true});
}

struct Weights {
  ggml_context* ctx;
  ggml_backend_buffer_t buffer;
  std::vector<ggml_tensor*> copies;
};

Weights make_weights(int rows, int cols, double bytes) {
  const std::size_t size = ggml_row_size(GGML_TYPE_Q4_0, cols) * rows;
  const int count = std::max(1, static_cast<int>(bytes / size));
  Weights w{context(count), nullptr, {}};
  for (int i = 0; i < count; ++i) w.copies.push_back(ggml_new_tensor_2d(w.ctx, GGML_TYPE_Q4_0, cols, rows));
  w.buffer = ggml_backend_alloc_ctx_tensors_from_buft(w.ctx, repacked());
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> row(cols);
  std::vector<char> packed(size);
  const std::size_t row_bytes = ggml_row_size(GGML_TYPE_Q4_0, cols);
  for (auto& value : row) value = normal(random);
  for (int r = 0; r < rows; ++r) {
    std::rotate(row.begin(), row.begin() + 1, row.end());
    ggml_quantize_chunk(GGML_TYPE_Q4_0, row.data(), packed.data() + r * row_bytes, 0, 1, cols, nullptr);
  }
  for (auto* copy : w.copies) ggml_backend_tensor_set(copy, packed.data(), 0, size);
  return w;
}

// A graph of one product for each copy, computed in turn; the lower quartile of the times, in microseconds.
double time_products(ggml_backend_t backend, const Weights& w, int cols, int batch, double seconds) {
  ggml_context* inputs = context(1);
  ggml_tensor* x = ggml_new_tensor_2d(inputs, GGML_TYPE_F32, cols, batch);
  ggml_backend_buffer_t x_buffer = ggml_backend_alloc_ctx_tensors(inputs, backend);
  std::vector<float> values(static_cast<std::size_t>(cols) * batch);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (auto& value : values) value = normal(random);
  ggml_backend_tensor_set(x, values.data(), 0, values.size() * sizeof(float));

  std::vector<ggml_context*> contexts;
  std::vector<ggml_cgraph*> graphs;
  std::vector<ggml_backend_buffer_t> buffers;
  for (auto* weight : w.copies) {
    contexts.push_back(ggml_init({ggml_tensor_overhead() * 4 + ggml_graph_overhead_custom(8, false), nullptr, true}));
    graphs.push_back(ggml_new_graph_custom(contexts.back(), 8, false));
    ggml_build_forward_expand(graphs.back(), ggml_mul_mat(contexts.back(), weight, x));
    buffers.push_back(ggml_backend_alloc_ctx_tensors(contexts.back(), backend));
  }
  std::vector<double> times;
  for (int i = 0; i < 2; ++i) ggml_backend_graph_compute(backend, graphs[i % graphs.size()]);
  for (const double end = now() + seconds; now() < end || times.size() < 5;) {
    const double start = now();
    ggml_backend_graph_compute(backend, graphs[times.size() % graphs.size()]);
    times.push_back(now() - start);
  }
  for (auto* buffer : buffers) ggml_backend_buffer_free(buffer);
  for (auto* ctx : contexts) ggml_free(ctx);
  ggml_backend_buffer_free(x_buffer);
  ggml_free(inputs);
  std::sort(times.begin(), times.end());
  return times[times.size() / 4] * 1e6;
}

}  // namespace

int main(int count, char** words) {
  if (count < 5) return 2;
  const int threads = std::atoi(words[1]);
  const double seconds = std::atof(words[2]), bytes = std::atof(words[3]);
  ggml_backend_t backend = ggml_backend_cpu_init();
  // A pool that spins between products, as llama.cpp's does while it decodes.
  ggml_threadpool_params params = ggml_threadpool_params_default(threads);
  params.poll = 100;
  ggml_threadpool* pool = ggml_threadpool_new(&params);
  ggml_backend_cpu_set_n_threads(backend, threads);
  ggml_backend_cpu_set_threadpool(backend, pool);
  std::printf("{\"detail\": \"Q4_0, %s\", \"us\": {", ggml_backend_buft_name(repacked()));
  for (int i = 4; i < count; ++i) {
    const auto parts = split(words[i], ':');
    const int rows = std::stoi(parts[1]), cols = std::stoi(parts[2]);
    const Weights weights = make_weights(rows, cols, bytes);
    std::printf("%s\"%s\": {", i > 4 ? ", " : "", parts[0].c_str());
    const auto batches = split(parts[3], ',');
    for (std::size_t b = 0; b < batches.size(); ++b) {
      const double us = time_products(backend, weights, cols, std::stoi(batches[b]), seconds);
      std::printf("%s\"%s\": %.3f", b ? ", " : "", batches[b].c_str(), us);
    }
    std::printf("}");
    ggml_backend_buffer_free(weights.buffer);
    ggml_free(weights.ctx);
  }
  std::printf("}}\n");
  ggml_backend_free(backend);
  ggml_threadpool_free(pool);
}
