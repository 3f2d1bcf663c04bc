// trtplugins._host: arrays in, arrays out. trtplugins.host documents and checks; this checks what memory safety needs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "accept.hpp"
#include "lookup.hpp"

namespace nb = nanobind;
using namespace trtlookup_host;

namespace {

using Ints = nb::ndarray<const int, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using Bytes = nb::ndarray<const unsigned char, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> owned(std::size_t size, T value) {
  T* data = new T[size];
  std::fill(data, data + size, value);
  return {data, {size}, nb::capsule(data, [](void* p) noexcept { delete[] static_cast<T*>(p); })};
}

Format format_of(nb::dlpack::dtype dtype) {
  if (dtype == nb::dtype<float>()) return Format::float32;
  if (dtype.bits == 16 && dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float)) return Format::float16;
  if (dtype.bits == 16 && dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat)) return Format::bfloat16;
  if (dtype == nb::dtype<std::uint16_t>()) return Format::bfloat16;
  throw nb::value_error("logits: dtype must be float32, float16, bfloat16, or uint16 holding bfloat16 bits");
}

const Rows& rows_named(const std::string& name) {
  if (name.empty()) return pick_rows();
  for (const Rows* rows : {&baseline_rows(), &avx2_rows(), &avx512_rows()}) {
    if (name == rows->name) return *rows;
  }
  throw nb::value_error(("no instruction set " + name + "; allowed: baseline, avx2, avx512").c_str());
}

nb::tuple accept_batch(const Logits& logits, const Ints& row_start, const Ints& num_rows, const Ints& tokens,
                       const std::optional<Bytes>& sampling, int threads, const std::string& isa) {
  const std::size_t rows = logits.shape(0), batch = row_start.shape(0);
  if (rows > 0 && logits.shape(1) > 1 && logits.stride(1) != 1) throw nb::value_error("logits: each row must be contiguous");
  if (logits.shape(1) < 1 || logits.shape(1) > 0x7fffffff) throw nb::value_error("logits: shape must be [rows, vocab]");
  if (tokens.shape(0) != rows) throw nb::value_error("tokens: must have as many rows as logits");
  if (num_rows.shape(0) != batch) throw nb::value_error("num_rows: must be as long as row_start");
  if (sampling && sampling->shape(0) != batch * 96) throw nb::value_error("sampling: must have an entry per sequence");
  if (threads < 1) throw nb::value_error("threads: must be at least 1");
  std::vector<bool> taken(rows);
  for (std::size_t b = 0; b < batch; ++b) {
    const long long start = row_start.data()[b], count = num_rows.data()[b];
    if (start < 0 || count < 0 || start + count > static_cast<long long>(rows)) {
      throw nb::value_error(("sequence " + std::to_string(b) + ": rows " + std::to_string(start) + " to " +
                             std::to_string(start + count - 1) + " are outside the " + std::to_string(rows) +
                             " rows of logits").c_str());
    }
    for (long long r = start; r < start + count; ++r) {
      if (taken[r]) throw nb::value_error(("row " + std::to_string(r) + " belongs to two sequences").c_str());
      taken[r] = true;
    }
  }
  auto targets = owned<int>(rows, -1);
  auto accepted = owned<int>(batch, 0);
  auto next = owned<int>(batch, -1);
  auto failed = owned<bool>(batch, false);
  const AcceptBatch call{logits.data(), format_of(logits.dtype()), logits.stride(0),
                         static_cast<int>(logits.shape(1)), static_cast<int>(batch), row_start.data(), num_rows.data(),
                         tokens.data(), sampling ? sampling->data() : nullptr, targets.data(), accepted.data(),
                         next.data(), failed.data()};
  const Rows& rule = rows_named(isa);
  {
    nb::gil_scoped_release release;
    accept(rule, call, threads);
  }
  return nb::make_tuple(targets, accepted, failed, next);
}

nb::tuple lookup_batch(const nb::ndarray<const int, nb::ndim<2>, nb::c_contig, nb::device::cpu>& history,
                       const Ints& lengths, const Ints& allowed, int ngram, int min_match, int depth, int max_rows) {
  const std::size_t batch = history.shape(0), max_len = history.shape(1);
  if (lengths.shape(0) != batch || allowed.shape(0) != batch) {
    throw nb::value_error("lengths and allowed: must have an entry per history");
  }
  for (std::size_t b = 0; b < batch; ++b) {
    if (lengths.data()[b] < 0 || static_cast<std::size_t>(lengths.data()[b]) > max_len) {
      throw nb::value_error("lengths: must be 0 to the histories' length");
    }
  }
  int* data = new int[batch * max_rows]();
  nb::ndarray<nb::numpy, int, nb::ndim<2>> rows(data, {batch, static_cast<std::size_t>(max_rows)},
                                                nb::capsule(data, [](void* p) noexcept { delete[] static_cast<int*>(p); }));
  auto num_rows = owned<int>(batch, 0);
  auto start = owned<int>(batch, -1);
  {
    nb::gil_scoped_release release;
    for (std::size_t b = 0; b < batch; ++b) {
      num_rows.data()[b] = lookup(history.data() + b * max_len, lengths.data()[b], allowed.data()[b], ngram, min_match,
                                  depth, max_rows, data + b * max_rows, start.data() + b);
    }
  }
  return nb::make_tuple(rows, num_rows, start);
}

}  // namespace

NB_MODULE(_host, m) {
  m.def("accept", &accept_batch, nb::arg("logits"), nb::arg("row_start"), nb::arg("num_rows"), nb::arg("tokens"),
        nb::arg("sampling").none(), nb::arg("threads"), nb::arg("isa") = "");
  m.def("lookup", &lookup_batch, nb::arg("history"), nb::arg("lengths"), nb::arg("allowed"), nb::arg("ngram"),
        nb::arg("min_match"), nb::arg("depth"), nb::arg("max_rows"));
  m.def("instruction_set", [] { return std::string(pick_rows().name); });
}
