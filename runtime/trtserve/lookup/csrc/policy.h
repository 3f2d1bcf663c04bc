// When a sequence copies, from which of its sources, and how much. One file per policy, ending in a
// make_..._policy() that policy.cpp lists under the policy's name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sources.h"

namespace trtlookup {

struct LookupSettings {
    int ngram;
    int max_drafts;
    int min_match;  // effective: at least ngram
    int miss_backoff;
};

// One sequence's policy, with its state.
class Policy {
  public:
    virtual ~Policy() = default;

    // One round. Writes at most `limit` tokens to `out`. Whether a copy is then verified is told by settle(); one that
    // is dropped unverified is not told at all.
    virtual Copy propose(const Sources& sources, int limit, Token* out) = 0;

    // `accepted` of the `proposed` drafts that were verified, from `source`.
    virtual void settle(Source source, int proposed, int accepted) = 0;

    virtual int window() const noexcept = 0;  // most drafts the next copy may have
    virtual bool backing_off() const noexcept = 0;
    virtual std::int64_t rounds_skipped() const noexcept = 0;
};

// Throws std::invalid_argument for a name it does not know.
std::unique_ptr<Policy> make_policy(const std::string& name, const LookupSettings& settings);

}  // namespace trtlookup
