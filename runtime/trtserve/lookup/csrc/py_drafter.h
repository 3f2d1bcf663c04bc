// The drafter and its sequences as Python holds them: argument checks, the GIL, and what proposals look like there.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "row_budget.h"
#include "sequence.h"

namespace trtlookup {

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
    std::uint64_t batch = 0;  // number of the current call for a batch
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

// What Python's side brings: how proposals look, and NumPy's arrays.
struct PyTypes {
    nb::type_object proposal;  // a named tuple of (tokens, source, match)
    nb::object no_copy;        // the proposal without a copy
    nb::tuple sources;         // names of history, prediction and shared
    nb::object drafts;         // makes what step() returns of (tokens, counts, sources, matches)
    nb::object empty;          // numpy.empty
    nb::object int32;          // its dtype
};

class PyDrafter {
  public:
    PyDrafter(int ngram, int max_drafts, int min_match, int miss_backoff, std::shared_ptr<SharedCache> shared,
              int shared_key, const std::string& policy, const VerifyCost& cost, const std::optional<std::vector<int>>& priors,
              PyTypes types)
        : state_(std::make_shared<DrafterState>()), types_(std::move(types)), budget_(cost, max_drafts) {
        if (!PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(types_.proposal.ptr()), &PyTuple_Type) || nb::len(types_.sources) != 3)
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

    nb::list propose(nb::handle sequences, nb::handle limits, int others) {
        const Batch batch(sequences);
        const Int32s most(limits, "limits");
        const Busy busy(state_->busy);
        if (others < 0) throw std::invalid_argument("propose: others is " + std::to_string(others) + "; allowed: 0 or more");
        gather("propose", batch, most);
        for (std::size_t i = 0; i < batch.size(); ++i) {
            if (most.data()[i] < 0) throw_item("propose", i, ": limit is " + std::to_string(most.data()[i]) + "; allowed: 0 or more");
            if (all_[i]->waiting()) throw_item("propose", i, " has a proposal that was neither settled nor abandoned");
        }
        take_part(most);
        make_room();
        // One sequence's search is shorter than giving the GIL away and waiting for it.
        without_gil(batch.size() > 1, [&] { search(most, drafts_.data + drafts_.used, others); });
        return proposals();
    }

    nb::object step(nb::handle sequences, nb::handle accepted, nb::handle emitted, nb::handle limits, int others) {
        const Batch batch(sequences);
        const Int32s right(accepted, "accepted"), most(limits, "limits");
        if (!is_list_or_tuple(emitted))
            throw std::invalid_argument(std::string("emitted is ") + nb::repr(emitted.type()).c_str() +
                                        "; allowed: a list or tuple of tokens for each sequence");
        const auto texts = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(emitted.ptr()));
        const Busy busy(state_->busy);
        if (others < 0) throw std::invalid_argument("step: others is " + std::to_string(others) + "; allowed: 0 or more");
        gather("step", batch, most);
        if (right.size() != batch.size() || texts != batch.size())
            throw std::invalid_argument("step: " + std::to_string(batch.size()) + " sequences, " + std::to_string(right.size()) +
                                        " counts of accepted drafts and " + std::to_string(texts) + " lists of emitted tokens");
        read_emitted(emitted, texts);
        for (std::size_t i = 0; i < texts; ++i) check_step(i, right.data()[i], most.data()[i]);
        take_part(most);
        chosen_.resize(gathered_.size() * max_drafts());
        rows(texts);
        without_gil(texts > 1, [&] {
            for (std::size_t i = 0; i < texts; ++i) learn(i, right.data()[i]);
            search(most, chosen_.data(), others + static_cast<int>(texts - gathered_.size()));
        });
        write_rows(texts);
        return rows_.drafts;
    }

    void finish(PySequence& sequence, bool store) {
        check("finish", sequence);
        const Busy busy(state_->busy);
        const nb::gil_scoped_release release;
        sequence.sequence.finish(store);
    }

  private:
    // The sequences of one call, kept alive by it.
    class Batch {
      public:
        explicit Batch(nb::handle sequences) {
            if (PyList_CheckExact(sequences.ptr()) && PyList_GET_SIZE(sequences.ptr()) == 1) {
                one_ = nb::borrow(PyList_GET_ITEM(sequences.ptr(), 0));
            } else {
                tuple_ = owned(PySequence_Tuple(sequences.ptr()));
            }
        }
        std::size_t size() const noexcept { return one_.is_valid() ? 1 : static_cast<std::size_t>(PyTuple_GET_SIZE(tuple_.ptr())); }
        nb::handle operator[](std::size_t i) const noexcept {
            return one_.is_valid() ? nb::handle(one_) : nb::handle(PyTuple_GET_ITEM(tuple_.ptr(), static_cast<Py_ssize_t>(i)));
        }

      private:
        nb::object one_, tuple_;
    };

    [[noreturn]] static void throw_item(const char* what, std::size_t i, const std::string& problem) {
        throw std::invalid_argument(std::string(what) + ": item " + std::to_string(i) + problem);
    }

    template <typename Work>
    static void without_gil(bool released, Work&& work) {
        if (!released) return work();
        const nb::gil_scoped_release release;
        work();
    }

    std::size_t max_drafts() const noexcept { return static_cast<std::size_t>(state_->settings.max_drafts); }

    void check(const char* what, PySequence& sequence) const {
        if (sequence.drafter != state_) throw std::invalid_argument(std::string(what) + ": the sequence is another drafter's");
        if (sequence.sequence.finished()) throw std::invalid_argument(std::string(what) + ": the sequence is finished");
    }

    // ---- arguments, checked before anything changes ----

    void gather(const char* what, const Batch& batch, const Int32s& limits) {
        if (limits.size() != batch.size())
            throw std::invalid_argument(std::string(what) + ": " + std::to_string(batch.size()) + " sequences and " +
                                        std::to_string(limits.size()) + " limits");
        all_.clear();
        ++state_->batch;
        for (std::size_t i = 0; i < batch.size(); ++i) {
            PySequence* sequence = nullptr;
            if (!nb::try_cast(batch[i], sequence, false) || !sequence) throw_item(what, i, " is not a SequenceDrafter");
            check(what, *sequence);
            if (sequence->batch == state_->batch) throw_item(what, i, " is in the batch twice");
            sequence->batch = state_->batch;
            all_.push_back(&sequence->sequence);
        }
    }

    void read_emitted(nb::handle emitted, std::size_t count) {
        emitted_.clear();
        ends_.clear();
        for (std::size_t i = 0; i < count; ++i) {
            append_int32s(PySequence_Fast_GET_ITEM(emitted.ptr(), static_cast<Py_ssize_t>(i)), "emitted", emitted_);
            ends_.push_back(emitted_.size());
        }
    }

    // What sequence i's last round emitted.
    const Token* emitted(std::size_t i) const noexcept { return emitted_.data() + (i == 0 ? 0 : ends_[i - 1]); }
    std::size_t emitted_count(std::size_t i) const noexcept { return ends_[i] - (i == 0 ? 0 : ends_[i - 1]); }

    void check_step(std::size_t i, int accepted, int limit) const {
        try {
            if (accepted < -1) throw std::invalid_argument("accepted is " + std::to_string(accepted) + "; allowed: -1 or more");
            if (settles(i, accepted)) all_[i]->check_settle(accepted, std::nullopt);
            all_[i]->text().check_append(emitted(i), emitted_count(i));
            if (limit < -1) throw std::invalid_argument("limit is " + std::to_string(limit) + "; allowed: -1 or more");
        } catch (const std::invalid_argument& problem) {
            throw_item("step", i, std::string(": ") + problem.what());
        }
    }

    // 0 accepted where nothing waits says nothing: as verifies report sequences without drafts.
    bool settles(std::size_t i, int accepted) const noexcept { return accepted > 0 || (accepted == 0 && all_[i]->waiting()); }

    // The sequences that take part in the round: those with a limit.
    void take_part(const Int32s& limits) {
        gathered_.clear();
        for (std::size_t i = 0; i < all_.size(); ++i)
            if (limits.data()[i] >= 0) gathered_.push_back(i);
        copies_.resize(gathered_.size());
        offers_.resize(gathered_.size());
        saved_.resize(gathered_.size() * max_drafts());
    }

    // ---- the round, without Python ----

    void learn(std::size_t i, int accepted) {
        if (settles(i, accepted)) {
            all_[i]->settle(accepted, std::nullopt);
        } else {
            all_[i]->abandon();
        }
        all_[i]->observe(emitted(i), emitted_count(i));
    }

    // Writes the drafts one after the other from `begin` on. `others`: sequences of the batch that take no part.
    void search(const Int32s& limits, Token* begin, int others) {
        const int most = state_->settings.max_drafts;
        if (gathered_.empty()) return;
        const Outlook& outlook = budget_.outlook(static_cast<int>(gathered_.size()) + others);
        Token* out = begin;
        bool weighed = false;
        for (std::size_t k = 0; k < gathered_.size(); ++k) {
            Sequence& sequence = *all_[gathered_[k]];
            const auto at = static_cast<std::size_t>(out - begin);
            copies_[k] = sequence.propose(std::min(limits.data()[gathered_[k]], most), out, saved_.data() + at, outlook);
            offers_[k] = {saved_.data() + at, copies_[k].count};
            weighed = sequence.policy().weighs();
            out += copies_[k].count;
        }
        if (weighed) divide(begin, others);
    }

    // Drops the drafts that do not pay in this batch, and closes the gaps they leave.
    void divide(Token* begin, int others) {
        budget_.divide(offers_, taken_, others);
        const Token* from = begin;
        Token* to = begin;
        for (std::size_t k = 0; k < gathered_.size(); ++k) {
            if (offers_[k].count == 0) continue;
            const int count = taken_[k];
            std::copy_n(from, count, to);
            from += offers_[k].count;
            to += count;
            copies_[k] = all_[gathered_[k]]->keep(count);
        }
    }

    // ---- proposals: a list of named tuples ----

    // Drafts are written into a NumPy array, part after part, and each proposal is a view of its part: nothing is copied
    // and no part is used twice. A full array is left to the proposals that still view it.
    void make_room() {
        const std::size_t needed = gathered_.size() * max_drafts();
        if (needed <= drafts_.capacity - drafts_.used) return;
        Drafts fresh;
        fresh.capacity = std::max(kDraftsPerArray, needed);
        fresh.array = types_.empty(fresh.capacity, types_.int32);
        fresh.data = array_data<1>(fresh.array);
        drafts_ = std::move(fresh);
    }

    nb::list proposals() {
        nb::list result = owned<nb::list>(PyList_New(static_cast<Py_ssize_t>(gathered_.size())));
        for (std::size_t k = 0; k < gathered_.size(); ++k) {
            nb::object item = copies_[k].count > 0 ? proposal(copies_[k]) : types_.no_copy;
            PyList_SET_ITEM(result.ptr(), static_cast<Py_ssize_t>(k), item.release().ptr());
        }
        return result;
    }

    // The named tuple is filled as tuple.__new__ would, without the Python-level __new__ that costs more than the search.
    nb::object proposal(const Copy& copy) {
        const auto begin = static_cast<Py_ssize_t>(drafts_.used);
        drafts_.used += static_cast<std::size_t>(copy.count);
        nb::object tokens = owned(PySequence_GetSlice(drafts_.array.ptr(), begin, static_cast<Py_ssize_t>(drafts_.used)));
        nb::object match = owned(PyLong_FromLong(copy.match));
        auto* type = reinterpret_cast<PyTypeObject*>(types_.proposal.ptr());
        nb::object tuple = owned(type->tp_alloc(type, 3));
        PyTuple_SET_ITEM(tuple.ptr(), 0, tokens.release().ptr());
        PyTuple_SET_ITEM(tuple.ptr(), 1, Py_NewRef(PyTuple_GET_ITEM(types_.sources.ptr(), static_cast<Py_ssize_t>(copy.source) - 1)));
        PyTuple_SET_ITEM(tuple.ptr(), 2, match.release().ptr());
        return tuple;
    }

    // ---- a step's drafts: four arrays, used again as long as the batch has the same size ----

    struct Rows {
        nb::object drafts;
        std::size_t batch = 0;
        std::int32_t *tokens = nullptr, *counts = nullptr, *sources = nullptr, *matches = nullptr;
    };

    void rows(std::size_t batch) {
        if (rows_.drafts.is_valid() && rows_.batch == batch) return;
        const nb::object tokens = types_.empty(nb::make_tuple(batch, max_drafts()), types_.int32);
        nb::object each[3];
        for (nb::object& array : each) array = types_.empty(batch, types_.int32);
        Rows fresh{types_.drafts(tokens, each[0], each[1], each[2]), batch, array_data<2>(tokens), array_data<1>(each[0]),
                   array_data<1>(each[1]), array_data<1>(each[2])};
        std::fill_n(fresh.tokens, batch * max_drafts(), 0);
        rows_ = std::move(fresh);
    }

    void write_rows(std::size_t batch) noexcept {
        std::fill_n(rows_.counts, batch, 0);
        std::fill_n(rows_.sources, batch, 0);
        std::fill_n(rows_.matches, batch, 0);
        const Token* from = chosen_.data();
        for (std::size_t k = 0; k < gathered_.size(); ++k) {
            const Copy& copy = copies_[k];
            const std::size_t row = gathered_[k];
            if (copy.count == 0) continue;  // whatever source was asked last
            std::copy_n(from, copy.count, rows_.tokens + row * max_drafts());
            from += copy.count;
            rows_.counts[row] = copy.count;
            rows_.sources[row] = static_cast<std::int32_t>(copy.source);
            rows_.matches[row] = copy.match;
        }
    }

    template <std::size_t Dimensions>
    static std::int32_t* array_data(nb::handle array) {
        return nb::cast<nb::ndarray<std::int32_t, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>>(array).data();
    }

    struct Drafts {
        nb::object array;
        std::int32_t* data = nullptr;
        std::size_t capacity = 0, used = 0;
    };
    static constexpr std::size_t kDraftsPerArray = 16384;

    std::shared_ptr<DrafterState> state_;
    PyTypes types_;
    std::vector<Sequence*> all_;         // of the call
    std::vector<std::size_t> gathered_;  // places in all_ of those that take part in the round
    std::vector<Token> emitted_;         // by all sequences' last rounds, one after the other
    std::vector<std::size_t> ends_;      // where each one's end
    std::vector<Copy> copies_;           // one for each that takes part, as the next three
    std::vector<Offer> offers_;
    std::vector<int> taken_;
    std::vector<double> saved_;
    std::vector<Token> chosen_;
    RowBudget budget_;
    Drafts drafts_;
    Rows rows_;
};

}  // namespace trtlookup
