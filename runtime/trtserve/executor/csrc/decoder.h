// A decoder-only transformer on the CPU: packed weights, a KV cache of slots, one forward for all rows of a batch.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "thread_pool.h"

namespace trtlookup::cpu {

struct DecoderShape {
  int num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, vocab_size;
  float rms_norm_eps;
  bool tied, attention_bias, output_bias, mlp_bias, qk_norm;
  std::vector<std::int64_t> windows;  // per layer, 0: all positions
  Storage storage;
  int slots;
  std::int64_t positions;  // per slot
  int max_rows;            // of one forward
};

// One verify or one prefill chunk. Row i of sequence b is at position lengths[b] + i; rows are packed.
struct Batch {
  std::vector<std::int32_t> tokens, slots, lengths, num_rows;
  std::vector<std::int32_t> logit_rows;  // packed row indices whose logits are wanted
};

class Decoder {
 public:
  // cos, sin: [positions, head_dim / 2].
  Decoder(DecoderShape shape, const Kernels& kernels, int threads, std::vector<float> cos, std::vector<float> sin);

  // A canonical tensor, in the storage type for matrices and float32 for norms and biases. Throws std::invalid_argument
  // for a name or size this decoder does not have.
  void load(const std::string& name, const void* data, std::int64_t size);
  // Names of tensors not loaded yet.
  std::vector<std::string> missing() const;
  bool is_matrix(const std::string& name) const;

  // logits: [logit_rows, vocab_size]. Throws std::invalid_argument for what does not fit, before anything is written.
  void forward(const Batch& batch, float* logits);
  void copy_prefix(int source, int target, std::int64_t length);

  const DecoderShape& shape() const { return shape_; }
  const Kernels& kernels() const { return kernels_; }
  int threads() const { return pool_.threads(); }
  std::int64_t weight_bytes() const { return weights_.size(); }
  std::int64_t cache_bytes() const { return cache_.size(); }

 private:
  struct Matrix {
    void* weights = nullptr;
    float* bias = nullptr;
    std::int64_t n = 0, k = 0, panels = 0;
    std::int64_t panel_bytes = 0;
  };
  struct Layer {
    Matrix qkv, o, gate_up, down;
    float *attn_norm = nullptr, *mlp_norm = nullptr, *q_norm = nullptr, *k_norm = nullptr;
    std::int64_t window = 0;
  };
  // Where a tensor goes: row r of a matrix to packed row `first + r`, or interleaved by lanes for gate and up.
  struct Destination {
    Matrix* matrix = nullptr;
    float* vector = nullptr;  // a norm or a bias
    std::int64_t rows = 0, k = 0, first = 0;
    int interleave = -1;  // 0 gate, 1 up
    bool loaded = false;
  };
  // Rows of one sequence that are attended together.
  struct Block {
    int sequence, row, rows;
    std::int64_t position;  // of the first row
  };

  void lay_out();
  std::int64_t packed_row(const Destination& d, std::int64_t row) const;
  void check(const Batch& batch) const;
  void linear(const float* x, std::int64_t x_stride, int rows, const Matrix& m, float* out, std::int64_t out_stride,
              std::int64_t n, Epilogue epilogue);
  void norm(const float* x, const float* weight, float* out, int rows);
  void write_kv(const Batch& batch, int layer, int row, int sequence, std::int64_t position);
  void attend(const Batch& batch, int layer, const std::vector<Block>& blocks);
  float* keys(int layer, int slot, int head);
  float* values(int layer, int slot, int head);
  template <class Work>
  void for_rows(int rows, int grain, Work&& work);

  DecoderShape shape_;
  const Kernels& kernels_;
  std::vector<float> cos_, sin_;
  std::int64_t value_stride_, padded_positions_, head_floats_;
  std::int64_t qkv_size_;
  std::vector<Layer> layers_;
  Matrix lm_head_;
  float* final_norm_ = nullptr;
  std::vector<std::uint16_t> embed16_;  // untied embeddings, row-major in the storage type
  std::vector<float> embed32_;
  std::map<std::string, Destination> destinations_;
  Pages weights_, cache_, work_;
  float *x_ = nullptr, *normed_ = nullptr, *qkv_ = nullptr, *attended_ = nullptr, *inner_ = nullptr;
  float* scratch_ = nullptr;   // per thread
  float* partials_ = nullptr;  // one per span when threads share out spans
  std::int64_t scratch_floats_ = 0, partial_floats_ = 0;
  ThreadPool pool_;
};

}  // namespace trtlookup::cpu
