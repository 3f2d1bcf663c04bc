// The Python side: argument checks, the GIL, and nothing that decides anything.
//
// The core throws std::invalid_argument, which becomes ValueError, and std::bad_alloc, which becomes MemoryError.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <climits>
#include <stdexcept>
#include <string>
#include <vector>

#include "index.h"
#include "row_budget.h"
#include "sequence.h"
#include "shared_cache.h"
#include "verify_cost.h"
#include "window.h"

namespace nb = nanobind;
using namespace trtlookup;

namespace {

// Token ids (or limits) given as an int32 array, read in place, or as a list or tuple of ints, copied.
class Int32s {
  public:
    Int32s(nb::handle given, const char* name) {
        if (PyList_CheckExact(given.ptr()) || PyTuple_CheckExact(given.ptr())) {
            copy(given, name);
        } else if (!given.is_none() && nb::try_cast(given, array_, false)) {
            data_ = array_.data();
            size_ = array_.shape(0);
        } else {
            throw std::invalid_argument(std::string(name) + " is " + nb::repr(given.type()).c_str() +
                                        "; allowed: a one-dimensional C-contiguous int32 array, or a list or tuple of ints");
        }
    }
    Int32s(const Int32s&) = delete;
    Int32s& operator=(const Int32s&) = delete;

    const std::int32_t* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }

  private:
    void copy(nb::handle given, const char* name) {
        size_ = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(given.ptr()));
        std::int32_t* into = few_;
        if (size_ > std::size(few_)) {
            many_.resize(size_);
            into = many_.data();
        }
        data_ = into;
        for (std::size_t i = 0; i < size_; ++i) {
            PyObject* item = PySequence_Fast_GET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i));
            int overflow = 0;
            const long value = PyLong_Check(item) ? PyLong_AsLongAndOverflow(item, &overflow) : -1;
            if (!PyLong_Check(item) || overflow != 0 || value < INT32_MIN || value > INT32_MAX)
                throw std::invalid_argument(std::string(name) + ": item " + std::to_string(i) + " is " +
                                            nb::repr(item).c_str() + "; allowed: ints of 32 bits");
            into[i] = static_cast<std::int32_t>(value);
        }
    }

    nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> array_;
    std::int32_t few_[72];
    std::vector<std::int32_t> many_;
    const std::int32_t* data_ = nullptr;
    std::size_t size_ = 0;
};

// A new reference, or the Python error that took its place.
template <typename T = nb::object>
T owned(PyObject* object) {
    if (!object) nb::raise_python_error();
    return nb::steal<T>(object);
}

std::size_t checked_length(std::int64_t length, const char* name) {
    if (length < 0) throw std::invalid_argument(std::string(name) + " is " + std::to_string(length) + "; allowed: 0 or more");
    return static_cast<std::size_t>(length);
}

// Marks a drafter busy while a call runs without the GIL, so that a second thread gets an error and not a race.
class Busy {
  public:
    explicit Busy(bool& flag) : flag_(flag) {
        if (flag_) throw std::runtime_error("the drafter is in use by another thread; one thread calls it");
        flag_ = true;
    }
    ~Busy() { flag_ = false; }

  private:
    bool& flag_;
};

struct DrafterState {
    LookupSettings settings;
    std::string policy;
    std::shared_ptr<SharedCache> shared;
    Priors priors;
    bool busy = false;
    std::uint64_t batch = 0;  // number of the current propose call
};

// A sequence as Python holds it. `batch` finds a sequence named twice in one call.
struct PySequence {
    std::shared_ptr<DrafterState> drafter;
    Sequence sequence;
    std::uint64_t batch = 0;

    Sequence& open(const char* what) {
        if (drafter->busy) throw std::runtime_error("the drafter is in use by another thread; one thread calls it");
        if (sequence.finished()) throw std::invalid_argument(std::string(what) + ": the sequence is finished");
        return sequence;
    }
};

class PyDrafter {
  public:
    PyDrafter(int ngram, int max_drafts, int min_match, int miss_backoff, std::shared_ptr<SharedCache> shared,
              int shared_key, const std::string& policy, const VerifyCost& cost, const std::optional<std::vector<int>>& priors,
              nb::type_object proposal, nb::object none, nb::tuple sources, nb::object empty, nb::object int32)
        : state_(std::make_shared<DrafterState>()), proposal_(std::move(proposal)), none_(std::move(none)),
          empty_(std::move(empty)), int32_(std::move(int32)), sources_(std::move(sources)), budget_(cost) {
        if (!PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(proposal_.ptr()), &PyTuple_Type) || nb::len(sources_) != 3)
            throw std::invalid_argument("proposal must be a named tuple type, and sources three names");
        if (min_match < ngram)
            throw std::invalid_argument("min_match is " + std::to_string(min_match) + "; allowed: at least ngram, " +
                                        std::to_string(ngram));
        if (min_match > Sources::kMostMatch)
            throw std::invalid_argument("min_match is " + std::to_string(min_match) + "; allowed: at most " +
                                        std::to_string(Sources::kMostMatch));
        if (shared && shared->key_length() != shared_key)
            throw std::invalid_argument("the shared cache's key length is " + std::to_string(shared->key_length()) +
                                        "; these settings need " + std::to_string(shared_key));
        state_->settings = {ngram, max_drafts, min_match, miss_backoff};
        state_->policy = policy;
        state_->shared = std::move(shared);
        state_->priors = priors ? checked_priors(*priors) : shipped_priors();
        Sequence check(state_->settings, policy, state_->priors, std::nullopt, nullptr);  // refuses bad settings now
    }

    PySequence* start(nb::handle prompt, nb::handle prediction, std::optional<std::string> scope) {
        const Int32s text(prompt, "prompt"), expected(prediction, "prediction");
        auto sequence = std::unique_ptr<PySequence>(
            new PySequence{state_, Sequence(state_->settings, state_->policy, state_->priors, std::move(scope), state_->shared), 0});
        const Busy busy(state_->busy);
        const nb::gil_scoped_release release;
        sequence->sequence.begin(text.data(), text.size(), expected.data(), expected.size());
        return sequence.release();
    }

    nb::list propose(nb::handle sequences, nb::handle limits) {
        const nb::object batch = owned(PySequence_Tuple(sequences.ptr()));  // ours: keeps the sequences alive
        const Int32s most(limits, "limits");
        const auto count = static_cast<std::size_t>(PyTuple_GET_SIZE(batch.ptr()));
        if (most.size() != count)
            throw std::invalid_argument("propose: " + std::to_string(count) + " sequences and " +
                                        std::to_string(most.size()) + " limits");
        const Busy busy(state_->busy);
        gather(batch, most, count);
        if (count == 1) {
            search(most);  // shorter than giving the GIL away and waiting for it
        } else {
            const nb::gil_scoped_release release;
            search(most);
        }
        return proposals(count);
    }

    void finish(PySequence& sequence, bool store) {
        check(sequence, "finish");
        const Busy busy(state_->busy);
        const nb::gil_scoped_release release;
        sequence.sequence.finish(store);
    }

  private:
    void check(PySequence& sequence, const char* what) const {
        if (sequence.drafter != state_) throw std::invalid_argument(std::string(what) + ": the sequence is another drafter's");
        if (sequence.sequence.finished()) throw std::invalid_argument(std::string(what) + ": the sequence is finished");
    }

    void search(const Int32s& limits) {
        const int most = state_->settings.max_drafts;
        Token* const begin = drafts_.data + drafts_.used;
        Token* out = begin;
        bool weighed = false;
        for (std::size_t i = 0; i < gathered_.size(); ++i) {
            const std::size_t at = static_cast<std::size_t>(out - begin);
            copies_[i] = gathered_[i]->propose(std::min(limits.data()[i], most), out, chances_.data() + at);
            offers_[i] = {chances_.data() + at, copies_[i].count};
            weighed = gathered_[i]->policy().weighs();
            out += copies_[i].count;
        }
        if (weighed) divide(begin);
    }

    // Drops the drafts that do not pay in this batch, and closes the gaps they leave.
    void divide(Token* begin) {
        budget_.divide(offers_, taken_);
        const Token* from = begin;
        Token* to = begin;
        for (std::size_t i = 0; i < gathered_.size(); ++i) {
            if (offers_[i].count == 0) continue;
            const int count = taken_[i];
            std::copy_n(from, count, to);
            from += offers_[i].count;
            to += count;
            copies_[i] = gathered_[i]->keep(count);
        }
    }

    // Checks every argument before anything changes, and makes room for every draft.
    void gather(nb::handle batch, const Int32s& limits, std::size_t count) {
        gathered_.clear();
        ++state_->batch;
        for (std::size_t i = 0; i < count; ++i) {
            PySequence* sequence = nullptr;
            if (!nb::try_cast(nb::handle(PyTuple_GET_ITEM(batch.ptr(), static_cast<Py_ssize_t>(i))), sequence, false) || !sequence)
                throw std::invalid_argument("propose: item " + std::to_string(i) + " is not a SequenceDrafter");
            check(*sequence, "propose");
            if (sequence->batch == state_->batch)
                throw std::invalid_argument("propose: item " + std::to_string(i) + " is in the batch twice");
            sequence->batch = state_->batch;
            if (sequence->sequence.waiting())
                throw std::invalid_argument("propose: item " + std::to_string(i) +
                                            " has a proposal that was neither settled nor abandoned");
            if (limits.data()[i] < 0)
                throw std::invalid_argument("propose: limit " + std::to_string(i) + " is " +
                                            std::to_string(limits.data()[i]) + "; allowed: 0 or more");
            gathered_.push_back(&sequence->sequence);
        }
        copies_.resize(count);
        offers_.resize(count);
        chances_.resize(count * static_cast<std::size_t>(state_->settings.max_drafts));
        make_room(count);
    }

    // Drafts are written into a NumPy array, part after part, and each proposal is a view of its part: nothing is copied
    // and no part is used twice. A full array is left to the proposals that still view it.
    void make_room(std::size_t count) {
        const std::size_t needed = count * static_cast<std::size_t>(state_->settings.max_drafts);
        if (needed <= drafts_.capacity - drafts_.used) return;
        Drafts fresh;
        fresh.capacity = std::max(kDraftsPerArray, needed);
        fresh.array = empty_(fresh.capacity, int32_);
        fresh.data = nb::cast<nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(fresh.array).data();
        drafts_ = std::move(fresh);
    }

    nb::list proposals(std::size_t count) {
        nb::list result = owned<nb::list>(PyList_New(static_cast<Py_ssize_t>(count)));
        for (std::size_t i = 0; i < count; ++i) {
            const Copy& copy = copies_[i];
            nb::object item = copy.count > 0 ? proposal(copy) : none_;
            PyList_SET_ITEM(result.ptr(), static_cast<Py_ssize_t>(i), item.release().ptr());
        }
        return result;
    }

    // The named tuple is made as tuple.__new__ would, without the Python-level __new__ that costs more than the search.
    nb::object proposal(const Copy& copy) {
        const auto begin = static_cast<Py_ssize_t>(drafts_.used);
        drafts_.used += static_cast<std::size_t>(copy.count);
        const nb::object tokens = owned(PySequence_GetSlice(drafts_.array.ptr(), begin, static_cast<Py_ssize_t>(drafts_.used)));
        const nb::handle source(PyTuple_GET_ITEM(sources_.ptr(), static_cast<Py_ssize_t>(copy.source) - 1));
        const nb::tuple arguments = nb::make_tuple(nb::make_tuple(tokens, source, copy.match));
        return owned(PyTuple_Type.tp_new(reinterpret_cast<PyTypeObject*>(proposal_.ptr()), arguments.ptr(), nullptr));
    }

    struct Drafts {
        nb::object array;
        std::int32_t* data = nullptr;
        std::size_t capacity = 0, used = 0;
    };
    static constexpr std::size_t kDraftsPerArray = 16384;

    std::shared_ptr<DrafterState> state_;
    nb::object proposal_, none_, empty_, int32_;
    nb::tuple sources_;
    std::vector<Sequence*> gathered_;
    std::vector<Copy> copies_;
    std::vector<double> chances_;
    std::vector<Offer> offers_;
    std::vector<int> taken_;
    RowBudget budget_;
    Drafts drafts_;
};

nb::tuple index_propose(const NgramIndex& index, int limit, int min_match) {
    if (limit < 0) throw std::invalid_argument("limit is " + std::to_string(limit) + "; allowed: 0 or more");
    const std::size_t start = index.latest();
    const int match = start ? index.match(start, index.end(), index.size(), Sources::kMostMatch) : 0;
    const std::size_t count = start && match >= min_match ? std::min(index.size() - start, static_cast<std::size_t>(limit)) : 0;
    return nb::make_tuple(start, count, match);
}

template <typename T>
using ReadOnly = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A NumPy array that owns the vector's memory.
template <typename T>
nb::object handed_over(std::vector<T>&& values) {
    auto* moved = new std::vector<T>(std::move(values));
    const nb::capsule owner(moved, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(moved->data(), {moved->size()}, owner));
}

nb::list token_list(const Token* tokens, std::size_t count) {
    nb::list list;
    for (std::size_t i = 0; i < count; ++i) list.append(tokens[i]);
    return list;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Native core of trtserve.lookup. Use the classes of history.py, shared.py, window.py and drafter.py.";

    nb::class_<NgramIndex>(m, "Index")
        .def(nb::init<int, int>(), nb::arg("ngram"), nb::arg("hash_bits") = 64)
        .def("append", [](NgramIndex& self, nb::handle tokens) {
            const Int32s text(tokens, "tokens");
            self.append(text.data(), text.size());
        }, nb::arg("tokens").none())
        .def("truncate", [](NgramIndex& self, std::int64_t length) { self.truncate(checked_length(length, "length")); },
             nb::arg("length"))
        .def("propose", &index_propose, nb::arg("limit"), nb::arg("min_match"))
        .def("occurrences", [](const NgramIndex& self) {
            nb::list places;
            for (std::size_t at = self.latest(); at != 0; at = self.older(at)) places.append(at);
            return places;
        })
        .def("tokens", [](const NgramIndex& self, std::int64_t start, std::int64_t stop) {
            const std::size_t from = checked_length(start, "start"), to = checked_length(stop, "stop");
            if (from > to || to > self.size())
                throw std::invalid_argument("tokens " + std::to_string(from) + " to " + std::to_string(to) +
                                            " of a history of " + std::to_string(self.size()));
            return token_list(self.tokens() + from, to - from);
        }, nb::arg("start"), nb::arg("stop"))
        .def_prop_ro("bytes", &NgramIndex::bytes)
        .def("__len__", &NgramIndex::size);

    nb::class_<Window>(m, "Window")
        .def(nb::init<int, int>(), nb::arg("max_drafts"), nb::arg("miss_backoff"))
        .def("skip_round", &Window::skip_round)
        .def("settle", [](Window& self, int proposed, int accepted) {
            if (proposed < 1 || accepted < 0 || accepted > proposed)
                throw std::invalid_argument("settle: " + std::to_string(accepted) + " accepted of " +
                                            std::to_string(proposed) + " proposed; allowed: 0 to proposed, of at least 1");
            self.settle(proposed, accepted);
        }, nb::arg("proposed"), nb::arg("accepted"))
        .def_prop_ro("size", &Window::size)
        .def_prop_ro("backing_off", &Window::backing_off)
        .def_prop_ro("rounds_skipped", &Window::rounds_skipped);

    nb::class_<SharedCache>(m, "SharedCache")
        .def(nb::init<std::size_t, int, int, std::size_t>(), nb::arg("budget"), nb::arg("scopes"), nb::arg("key_length"),
             nb::arg("min_share_tokens") = SharedCache::kMinShareTokens)
        .def("insert", [](SharedCache& self, const std::string& scope, nb::handle tokens) {
            const Int32s text(tokens, "tokens");
            const nb::gil_scoped_release release;
            self.insert(scope, text.data(), text.size());
        }, nb::arg("scope"), nb::arg("tokens").none())
        .def("propose", [](SharedCache& self, const std::string& scope, nb::handle tail, int limit) {
            const Int32s text(tail, "tail");
            if (limit < 0) throw std::invalid_argument("limit is " + std::to_string(limit) + "; allowed: 0 or more");
            std::vector<Token> out(static_cast<std::size_t>(std::min<std::int64_t>(limit, static_cast<std::int64_t>(self.share().tokens))));
            const auto found = self.copy(scope, text.data() + text.size(), text.size(), static_cast<int>(out.size()),
                                         Sources::kMostMatch, out.data());
            return nb::make_tuple(token_list(out.data(), static_cast<std::size_t>(found.count)), found.match);
        }, nb::arg("scope"), nb::arg("tail").none(), nb::arg("limit"))
        .def("stats", [](const SharedCache& self) {
            SharedCacheStats s;
            {
                const nb::gil_scoped_release release;  // an insert may hold the lock
                s = self.stats();
            }
            return nb::make_tuple(s.bytes, s.budget, s.scopes, s.evictions, s.documents, s.tokens);
        })
        .def("names", [](const SharedCache& self) {
            nb::list names;
            for (const std::string& name : self.names()) names.append(name);
            return names;
        })
        .def("save", [](const SharedCache& self, const std::string& scope) -> nb::object {
            std::optional<SavedText> saved;
            {
                const nb::gil_scoped_release release;
                saved = self.save(scope);
            }
            if (!saved) return nb::none();
            return nb::make_tuple(handed_over(std::move(saved->tokens)), handed_over(std::move(saved->indexed)),
                                  saved->documents, saved->stored_at);
        }, nb::arg("scope"))
        .def("restore", [](SharedCache& self, const std::string& scope, ReadOnly<std::uint32_t> tokens,
                           ReadOnly<std::uint8_t> indexed, int key_length, std::uint64_t documents, std::int64_t stored_at) {
            if (indexed.shape(0) != (tokens.shape(0) + 7) / 8)
                throw std::invalid_argument("restore: " + std::to_string(indexed.shape(0)) + " bytes of index bits for " +
                                            std::to_string(tokens.shape(0)) + " tokens");
            const nb::gil_scoped_release release;
            self.restore(scope, tokens.data(), tokens.shape(0), indexed.data(), key_length, documents, stored_at);
        }, nb::arg("scope"), nb::arg("tokens"), nb::arg("indexed"), nb::arg("key_length"), nb::arg("documents"),
             nb::arg("stored_at"))
        .def_prop_ro("key_length", &SharedCache::key_length)
        .def_prop_ro("share_bytes", [](const SharedCache& self) { return self.share().bytes; })
        .def_prop_ro("share_slots", [](const SharedCache& self) { return self.share().slots; })
        .def_prop_ro("share_tokens", [](const SharedCache& self) { return self.share().tokens; });

    nb::class_<VerifyCost>(m, "VerifyCost")
        .def(nb::init<>())
        .def(nb::init<std::vector<int>, std::vector<std::vector<double>>>(), nb::arg("batches"), nb::arg("rows"))
        .def("at", [](const VerifyCost& self, int batch, int extra) {
            if (batch < 1 || extra < 0)
                throw std::invalid_argument("cost: batch " + std::to_string(batch) + ", extra rows " + std::to_string(extra) +
                                            "; allowed: at least 1 and 0");
            return self.at(batch, extra);
        }, nb::arg("batch"), nb::arg("extra"));

    m.def("shipped_priors", [] {
        const Priors priors = shipped_priors();
        return std::vector<int>(priors.begin(), priors.end());
    });
    m.def("divide_rows", [](const std::vector<std::vector<double>>& chances, const VerifyCost& cost) {
        std::vector<Offer> offers;
        for (const std::vector<double>& of : chances) offers.push_back({of.data(), static_cast<int>(of.size())});
        std::vector<int> taken;
        RowBudget(cost).divide(offers, taken);
        return taken;
    }, nb::arg("chances"), nb::arg("cost"));

    nb::class_<PySequence>(m, "SequenceDrafter")
        .def("observe", [](PySequence& self, nb::handle tokens) {
            const Int32s text(tokens, "tokens");
            self.open("observe").observe(text.data(), text.size());
        }, nb::arg("tokens").none())
        .def("settle", [](PySequence& self, int accepted, std::optional<int> verified) {
            self.open("settle").settle(accepted, verified);
        }, nb::arg("accepted"), nb::arg("verified") = nb::none())
        .def("abandon", [](PySequence& self) { self.open("abandon").abandon(); })
        .def("rewind", [](PySequence& self, std::int64_t length) {
            self.open("rewind").rewind(checked_length(length, "length"));
        }, nb::arg("length"))
        .def_prop_ro("length", [](const PySequence& self) { return self.sequence.history().size(); })
        .def_prop_ro("window", [](const PySequence& self) { return self.sequence.policy().window(); })
        .def_prop_ro("backing_off", [](const PySequence& self) { return self.sequence.policy().backing_off(); })
        .def_prop_ro("rounds_skipped", [](const PySequence& self) { return self.sequence.policy().rounds_skipped(); })
        .def_prop_ro("finished", [](const PySequence& self) { return self.sequence.finished(); })
        .def_prop_ro("bytes", [](const PySequence& self) { return self.sequence.bytes(); });

    nb::class_<PyDrafter>(m, "Drafter")
        .def(nb::init<int, int, int, int, std::shared_ptr<SharedCache>, int, const std::string&, const VerifyCost&,
                      const std::optional<std::vector<int>>&, nb::type_object, nb::object, nb::tuple,
                      nb::object, nb::object>(),
             nb::arg("ngram"), nb::arg("max_drafts"), nb::arg("min_match"), nb::arg("miss_backoff"),
             nb::arg("shared").none(), nb::arg("shared_key"), nb::arg("policy"), nb::arg("cost"), nb::arg("priors").none(), nb::arg("proposal"), nb::arg("no_copy"), nb::arg("sources"),
             nb::arg("empty"), nb::arg("int32"))
        .def("start", &PyDrafter::start, nb::arg("prompt").none(), nb::arg("prediction").none(), nb::arg("scope").none(),
             nb::rv_policy::take_ownership)
        .def("propose", &PyDrafter::propose, nb::arg("sequences").none(), nb::arg("limits").none())
        .def("finish", &PyDrafter::finish, nb::arg("sequence"), nb::arg("store"));
}
