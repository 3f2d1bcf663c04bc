#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "decoder.h"
#include "levels.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace trtlookup::cpu;

namespace {

using Int32 = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Float32 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Tensor = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

std::vector<std::string> levels() {
  std::vector<std::string> names;
  for (const Kernels* k : available_kernels()) names.emplace_back(k->name);
  return names;
}

const Kernels& kernels_of(const std::string& level) {
  for (const Kernels* k : available_kernels())
    if (level == k->name) return *k;
  std::string known;
  for (const auto& name : levels()) known += (known.empty() ? "" : ", ") + name;
  throw std::invalid_argument("CPU level is '" + level + "'; this machine and build have: " + known);
}

Storage storage_of(const std::string& dtype) {
  if (dtype == "float32") return Storage::kFloat32;
  if (dtype == "float16") return Storage::kFloat16;
  if (dtype == "bfloat16") return Storage::kBFloat16;
  throw std::invalid_argument("dtype is '" + dtype + "'; allowed: float32, float16, bfloat16");
}

std::vector<std::int32_t> list(const Int32& a) { return {a.data(), a.data() + a.size()}; }
std::vector<float> list(const Float32& a) { return {a.data(), a.data() + a.size()}; }

void load(Decoder& self, const std::string& name, const Tensor& data) {
  const bool wide = !self.is_matrix(name) || self.shape().storage == Storage::kFloat32;
  if (wide ? data.dtype() != nb::dtype<float>() : data.dtype() != nb::dtype<std::uint16_t>())
    throw std::invalid_argument(name + " must be " + (wide ? "float32" : "the bits of 16-bit floats, as uint16"));
  nb::gil_scoped_release release;
  self.load(name, data.data(), static_cast<std::int64_t>(data.size()));
}

void forward(Decoder& self, const Int32& tokens, const Int32& slots, const Int32& lengths, const Int32& num_rows,
             const Int32& logit_rows, const Logits& out) {
  const Batch batch{list(tokens), list(slots), list(lengths), list(num_rows), list(logit_rows)};
  if (out.shape(0) != batch.logit_rows.size() || out.shape(1) != static_cast<std::size_t>(self.shape().vocab_size))
    throw std::invalid_argument("out must be [logit_rows, vocab_size]");
  nb::gil_scoped_release release;
  self.forward(batch, out.data());
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.def("levels", levels);
  nb::class_<Decoder>(m, "Decoder")
      .def(
          "__init__",
          [](Decoder* self, int num_layers, int hidden_size, int intermediate_size, int num_heads, int num_kv_heads,
             int head_dim, int vocab_size, float rms_norm_eps, bool tied, bool attention_bias, bool output_bias,
             bool mlp_bias, bool qk_norm, const std::vector<std::int64_t>& windows, const std::string& dtype, int slots,
             std::int64_t positions, int max_rows, int threads, const std::string& level, const Float32& cos,
             const Float32& sin) {
            if (threads < 1 || threads > 256)
              throw std::invalid_argument("threads is " + std::to_string(threads) + "; allowed: 1 to 256");
            new (self) Decoder({num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim,
                                vocab_size, rms_norm_eps, tied, attention_bias, output_bias, mlp_bias, qk_norm, windows,
                                storage_of(dtype), slots, positions, max_rows},
                               kernels_of(level), threads, list(cos), list(sin));
          },
          nb::kw_only(), "num_layers"_a, "hidden_size"_a, "intermediate_size"_a, "num_heads"_a, "num_kv_heads"_a,
          "head_dim"_a, "vocab_size"_a, "rms_norm_eps"_a, "tied"_a, "attention_bias"_a, "output_bias"_a, "mlp_bias"_a,
          "qk_norm"_a, "windows"_a, "dtype"_a, "slots"_a, "positions"_a, "max_rows"_a, "threads"_a, "level"_a, "cos"_a,
          "sin"_a)
      .def("load", load, "name"_a, "data"_a)
      .def("missing", &Decoder::missing)
      .def("is_matrix", &Decoder::is_matrix, "name"_a)
      .def("forward", forward, "tokens"_a, "slots"_a, "lengths"_a, "num_rows"_a, "logit_rows"_a,
           "out"_a.noconvert())
      .def("copy_prefix", &Decoder::copy_prefix, "source"_a, "target"_a, "length"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("level", [](const Decoder& self) { return std::string(self.kernels().name); })
      .def_prop_ro("threads", &Decoder::threads)
      .def_prop_ro("weight_bytes", &Decoder::weight_bytes)
      .def_prop_ro("cache_bytes", &Decoder::cache_bytes);
}
