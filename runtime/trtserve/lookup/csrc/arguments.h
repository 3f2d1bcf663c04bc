// Arguments from Python: token ids and limits, checked and read where they are.
#pragma once

#include <nanobind/nanobind.h>

#include <climits>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace trtlookup {

namespace nb = nanobind;

// A new reference, or the Python error that took its place.
template <typename T = nb::object>
T owned(PyObject* object) {
    if (!object) nb::raise_python_error();
    return nb::steal<T>(object);
}

inline std::size_t checked_length(std::int64_t length, const char* name) {
    if (length < 0) throw std::invalid_argument(std::string(name) + " is " + std::to_string(length) + "; allowed: 0 or more");
    return static_cast<std::size_t>(length);
}

// Items of a list or tuple of ints, to `into`, which has room for them.
inline void copy_ints(nb::handle given, const char* name, std::int32_t* into) {
    const auto size = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(given.ptr()));
    for (std::size_t i = 0; i < size; ++i) {
        PyObject* item = PySequence_Fast_GET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i));
        int overflow = 0;
        const long value = PyLong_Check(item) ? PyLong_AsLongAndOverflow(item, &overflow) : -1;
        if (!PyLong_Check(item) || overflow != 0 || value < INT32_MIN || value > INT32_MAX)
            throw std::invalid_argument(std::string(name) + ": item " + std::to_string(i) + " is " + nb::repr(item).c_str() +
                                        "; allowed: ints of 32 bits");
        into[i] = static_cast<std::int32_t>(value);
    }
}

inline bool is_list_or_tuple(nb::handle given) noexcept {
    return PyList_CheckExact(given.ptr()) || PyTuple_CheckExact(given.ptr());
}

// An int32 array, read in place. By the buffer protocol: half of what a round costs would be spent on a general one.
class Int32Buffer {
  public:
    explicit Int32Buffer(nb::handle given) {
        if (!PyObject_CheckBuffer(given.ptr())) return;
        if (PyObject_GetBuffer(given.ptr(), &view_, PyBUF_ND | PyBUF_FORMAT) != 0) {
            PyErr_Clear();  // not C-contiguous
            return;
        }
        held_ = true;
    }
    ~Int32Buffer() { release(); }
    Int32Buffer(const Int32Buffer&) = delete;
    Int32Buffer& operator=(const Int32Buffer&) = delete;

    bool valid() const noexcept { return held_ && view_.ndim == 1 && view_.itemsize == 4 && is_signed(view_.format); }
    const std::int32_t* data() const noexcept { return static_cast<const std::int32_t*>(view_.buf); }
    std::size_t size() const noexcept { return static_cast<std::size_t>(view_.shape[0]); }

  private:
    // Native order, as 4-byte integers are named where int or long has 4 bytes.
    static bool is_signed(const char* format) noexcept {
        if (!format) return false;
        if (*format == '@' || *format == '=') ++format;
        return (*format == 'i' || *format == 'l') && format[1] == '\0';
    }
    void release() noexcept {
        if (held_) PyBuffer_Release(&view_);
        held_ = false;
    }

    Py_buffer view_;
    bool held_ = false;
};

[[noreturn]] inline void throw_not_int32s(nb::handle given, const char* name) {
    throw std::invalid_argument(std::string(name) + " is " + nb::repr(given.type()).c_str() +
                                "; allowed: a one-dimensional C-contiguous int32 array, or a list or tuple of ints");
}

// Token ids (or limits) given as an int32 array, read in place, or as a list or tuple of ints, copied.
class Int32s {
  public:
    Int32s(nb::handle given, const char* name) : buffer_(given) {
        if (buffer_.valid()) {
            data_ = buffer_.data();
            size_ = buffer_.size();
        } else if (is_list_or_tuple(given)) {
            size_ = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(given.ptr()));
            std::int32_t* into = few_;
            if (size_ > std::size(few_)) {
                many_.resize(size_);
                into = many_.data();
            }
            copy_ints(given, name, into);
            data_ = into;
        } else {
            throw_not_int32s(given, name);
        }
    }
    Int32s(const Int32s&) = delete;
    Int32s& operator=(const Int32s&) = delete;

    const std::int32_t* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }

  private:
    Int32Buffer buffer_;
    std::int32_t few_[72];
    std::vector<std::int32_t> many_;
    const std::int32_t* data_ = nullptr;
    std::size_t size_ = 0;
};

// The same, added to the end of `to`.
inline void append_int32s(nb::handle given, const char* name, std::vector<std::int32_t>& to) {
    if (is_list_or_tuple(given)) {
        const std::size_t before = to.size();
        to.resize(before + static_cast<std::size_t>(PySequence_Fast_GET_SIZE(given.ptr())));
        copy_ints(given, name, to.data() + before);
        return;
    }
    const Int32Buffer buffer(given);
    if (!buffer.valid()) throw_not_int32s(given, name);
    to.insert(to.end(), buffer.data(), buffer.data() + buffer.size());
}

}  // namespace trtlookup
