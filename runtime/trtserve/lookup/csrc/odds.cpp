#include "odds.h"

namespace trtlookup {

namespace {

constexpr Priors kShipped = {
#include "adaptive_priors.h"
};

}  // namespace

Priors shipped_priors() noexcept { return kShipped; }

}  // namespace trtlookup
