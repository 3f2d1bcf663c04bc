// When a sequence copies, from which of its sources, and how much. One file per policy, ending in a
// make_..._policy() that policy.cpp lists under the policy's name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "odds.h"
#include "row_budget.h"
#include "sources.h"

namespace trtlookup {

struct LookupSettings {
    int ngram;
    int max_drafts;
    int min_match;  // effective: at least ngram
    int miss_backoff;
};

// One sequence's policy, with its state. A round calls propose(), then keep(), then settle() if the kept drafts were
// verified, then observed().
class Policy {
  public:
    virtual ~Policy() = default;

    // Whether propose() tells what its drafts save, by which the batch's rows are divided. Otherwise every draft is verified.
    virtual bool weighs() const noexcept { return false; }

    // Writes at most `limit` tokens to `out` and, where it weighs, to `saved` the time that each is expected to save. Whether a copy is then verified is told by settle(); one that is dropped unverified is not told at all.
    virtual Copy propose(const Sources& sources, int limit, Token* out, double* saved, const Outlook& outlook) = 0;

    // The first `count` of the drafts proposed are put to the verify; 0: none. Called only where it weighs.
    virtual void keep(int) noexcept {}

    // `accepted` of the `proposed` drafts that were verified, from `source`.
    virtual void settle(Source source, int proposed, int accepted) = 0;

    // Tokens were committed: those of `sources.text()` from position `from` on. The first call gives the prompt.
    virtual void observed(const Sources&, std::size_t) {}

    // The sequence was cut to its first `length` tokens.
    virtual void rewound(std::size_t) noexcept {}

    virtual std::size_t bytes() const noexcept { return 0; }  // allocated for the sequence's length
    virtual int window() const noexcept = 0;                  // most drafts the next copy may have
    virtual bool backing_off() const noexcept = 0;
    virtual std::int64_t rounds_skipped() const noexcept = 0;
};

// Throws std::invalid_argument for a name it does not know. `priors` outlives the policy.
std::unique_ptr<Policy> make_policy(const std::string& name, const LookupSettings& settings, const Priors& priors);

}  // namespace trtlookup
