// What Python sees of the core. Nothing here decides anything.
//
// The core throws std::invalid_argument, which becomes ValueError, and std::bad_alloc, which becomes MemoryError.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "arguments.h"
#include "index.h"
#include "py_drafter.h"
#include "row_budget.h"
#include "shared_cache.h"
#include "verify_cost.h"
#include "window.h"

namespace nb = nanobind;
using namespace trtlookup;

namespace {

nb::tuple index_propose(const NgramIndex& index, int limit, int min_match) {
    if (limit < 0) throw std::invalid_argument("limit is " + std::to_string(limit) + "; allowed: 0 or more");
    const std::size_t start = index.latest();
    const int match = start ? index.match(start, index.end(), index.size(), Sources::kMostMatch) : 0;
    const std::size_t count = start && match >= min_match ? std::min(index.size() - start, static_cast<std::size_t>(limit)) : 0;
    return nb::make_tuple(start, count, match);
}

template <typename T>
using ReadOnly = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Whoever waits for the shared cache, which another thread may fill for a while, lets all other threads of Python go on. The
// GIL is waited for without the cache, so that this does not hold up those who want it.
void wait_without_gil(std::mutex& mutex) {
    if (!PyGILState_Check()) return SharedCache::wait(mutex);
    const nb::gil_scoped_release release;
    SharedCache::wait(mutex);
}

// A NumPy array that owns the vector's memory.
template <typename T>
nb::object handed_over(std::vector<T>&& values) {
    auto* moved = new std::vector<T>(std::move(values));
    const nb::capsule owner(moved, [](void* p) noexcept {
        const nb::gil_scoped_release release;  // much memory takes a while to give back
        delete static_cast<std::vector<T>*>(p);
    });
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
        .def("__init__", [](SharedCache* self, std::size_t budget, int scopes, int key_length, std::size_t min_share_tokens) {
            new (self) SharedCache(budget, scopes, key_length, min_share_tokens, &wait_without_gil);
        }, nb::arg("budget"), nb::arg("scopes"), nb::arg("key_length"), nb::arg("min_share_tokens") = SharedCache::kMinShareTokens)
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
        .def("ways", [](SharedCache& self, const std::string& scope, nb::handle tail, int limit, int most) {
            const Int32s text(tail, "tail");
            if (limit < 1 || limit > 1024) throw std::invalid_argument("limit is " + std::to_string(limit) + "; allowed: 1 to 1024");
            if (most < 0) throw std::invalid_argument("most is " + std::to_string(most) + "; allowed: 0 or more");
            most = std::min(most, ScopeText::kMostWays);
            const auto room = static_cast<std::size_t>(limit);
            std::array<Way, ScopeText::kMostWays> ways;
            std::array<int, ScopeText::kMostWays> lengths;
            std::vector<Token> out(static_cast<std::size_t>(most) * room);
            const int count = self.ways(scope, text.data() + text.size(), text.size(), limit, Sources::kMostMatch, ways.data(),
                                        most, out.data(), lengths.data());
            nb::list found;
            for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
                found.append(nb::make_tuple(token_list(out.data() + i * room, static_cast<std::size_t>(lengths[i])),
                                            ways[i].match, ways[i].same, ways[i].other, ways[i].longer));
            return found;
        }, nb::arg("scope"), nb::arg("tail").none(), nb::arg("limit"), nb::arg("most"))
        .def("stats", [](const SharedCache& self) {
            const SharedCacheStats s = self.stats();
            return nb::make_tuple(s.bytes, s.budget, s.scopes, s.evictions, s.documents, s.tokens);
        })
        .def("locked", [](const SharedCache& self, const nb::callable& call) -> nb::object {
            const auto lock = self.lock();
            return call();
        }, nb::arg("call"))
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
            return nb::make_tuple(handed_over(std::move(saved->tokens)), handed_over(std::move(saved->seen)),
                                  saved->documents, saved->stored_at);
        }, nb::arg("scope"))
        .def("restore", [](SharedCache& self, const std::string& scope, ReadOnly<std::uint32_t> tokens,
                           ReadOnly<std::uint16_t> seen, int key_length, std::uint64_t documents, std::int64_t stored_at) {
            if (seen.shape(0) != tokens.shape(0))
                throw std::invalid_argument("restore: counts of " + std::to_string(seen.shape(0)) + " tokens for " +
                                            std::to_string(tokens.shape(0)) + " tokens");
            const nb::gil_scoped_release release;
            self.restore(scope, tokens.data(), tokens.shape(0), seen.data(), key_length, documents, stored_at);
        }, nb::arg("scope"), nb::arg("tokens"), nb::arg("seen"), nb::arg("key_length"), nb::arg("documents"),
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
        std::vector<int> both(priors.shares.begin(), priors.shares.end());
        both.insert(both.end(), priors.weights.begin(), priors.weights.end());
        return both;
    });
    m.def("divide_rows", [](const std::vector<std::vector<double>>& chances, const VerifyCost& cost, int others) {
        std::size_t most = 0;
        for (const std::vector<double>& of : chances) most = std::max(most, of.size());
        RowBudget budget(cost, static_cast<int>(std::max(most, std::size_t{1}) - 1));
        const Outlook& outlook = budget.outlook(static_cast<int>(chances.size()) + others);
        std::vector<std::vector<double>> saved;
        std::vector<Offer> offers;
        for (const std::vector<double>& of : chances) {
            std::vector<double>& times = saved.emplace_back();
            for (std::size_t i = 0; i + 1 < of.size(); ++i)
                times.push_back(outlook.saved(of[i], of[i] > 0 ? std::min(of[i + 1] / of[i], 1.0) : 0.0));
            offers.push_back({times.data(), static_cast<int>(times.size())});
        }
        std::vector<int> taken;
        budget.divide(offers, taken, others);
        return taken;
    }, nb::arg("chances"), nb::arg("cost"), nb::arg("others") = 0);

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
        .def_prop_ro("length", [](const PySequence& self) { return self.sequence.length(); })
        .def_prop_ro("window", [](const PySequence& self) { return self.sequence.policy().window(); })
        .def_prop_ro("backing_off", [](const PySequence& self) { return self.sequence.policy().backing_off(); })
        .def_prop_ro("rounds_skipped", [](const PySequence& self) { return self.sequence.policy().rounds_skipped(); })
        .def_prop_ro("finished", [](const PySequence& self) { return self.sequence.finished(); })
        .def_prop_ro("bytes", [](const PySequence& self) { return self.sequence.bytes(); });

    nb::class_<PyDrafter>(m, "Drafter")
        .def("__init__", [](PyDrafter* self, int ngram, int max_drafts, int min_match, int miss_backoff,
                            std::shared_ptr<SharedCache> shared, int shared_key, const std::string& policy,
                            const VerifyCost& cost, const std::optional<std::vector<int>>& priors, nb::type_object proposal,
                            nb::object no_copy, nb::tuple sources, nb::object drafts, nb::object empty, nb::object int32) {
            PyTypes types{std::move(proposal), std::move(no_copy), std::move(sources), std::move(drafts), std::move(empty), std::move(int32)};
            new (self) PyDrafter(ngram, max_drafts, min_match, miss_backoff, std::move(shared), shared_key, policy, cost, priors,
                                 std::move(types));
        }, nb::arg("ngram"), nb::arg("max_drafts"), nb::arg("min_match"), nb::arg("miss_backoff"), nb::arg("shared").none(),
             nb::arg("shared_key"), nb::arg("policy"), nb::arg("cost"), nb::arg("priors").none(), nb::arg("proposal"),
             nb::arg("no_copy"), nb::arg("sources"), nb::arg("drafts"), nb::arg("empty"), nb::arg("int32"))
        .def("start", &PyDrafter::start, nb::arg("prompt").none(), nb::kw_only(), nb::arg("prediction").none() = nb::make_tuple(),
             nb::arg("scope").none(), nb::rv_policy::take_ownership)
        .def("propose", &PyDrafter::propose, nb::arg("sequences").none(), nb::arg("limits").none(),
             nb::arg("others") = 0)
        .def("step", &PyDrafter::step, nb::arg("sequences").none(), nb::arg("accepted").none(), nb::arg("emitted").none(),
             nb::arg("limits").none(), nb::arg("others") = 0)
        .def("finish", &PyDrafter::finish, nb::arg("sequence"), nb::kw_only(), nb::arg("store"));
}
