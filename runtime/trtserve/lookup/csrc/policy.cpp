#include "policy.h"

#include <stdexcept>

namespace trtlookup {

std::unique_ptr<Policy> make_adaptive_policy(const LookupSettings& settings, const Priors& priors);  // adaptive_policy.cpp
std::unique_ptr<Policy> make_window_policy(const LookupSettings& settings, const Priors& priors);    // window_policy.cpp

namespace {

struct Named {
    const char* name;
    std::unique_ptr<Policy> (*make)(const LookupSettings&, const Priors&);
};

constexpr Named kPolicies[] = {
    {"adaptive", make_adaptive_policy},
    {"window", make_window_policy},
};

}  // namespace

std::unique_ptr<Policy> make_policy(const std::string& name, const LookupSettings& settings, const Priors& priors) {
    std::string allowed;
    for (const Named& policy : kPolicies) {
        if (name == policy.name) return policy.make(settings, priors);
        allowed += (allowed.empty() ? "" : ", ") + std::string(policy.name);
    }
    throw std::invalid_argument("policy is '" + name + "'; allowed: " + allowed);
}

}  // namespace trtlookup
