#include "policy.h"

#include <stdexcept>

namespace trtlookup {

std::unique_ptr<Policy> make_window_policy(const LookupSettings& settings);  // window_policy.cpp

namespace {

struct Named {
    const char* name;
    std::unique_ptr<Policy> (*make)(const LookupSettings&);
};

constexpr Named kPolicies[] = {
    {"window", make_window_policy},
};

}  // namespace

std::unique_ptr<Policy> make_policy(const std::string& name, const LookupSettings& settings) {
    std::string allowed;
    for (const Named& policy : kPolicies) {
        if (name == policy.name) return policy.make(settings);
        allowed += (allowed.empty() ? "" : ", ") + std::string(policy.name);
    }
    throw std::invalid_argument("policy is '" + name + "'; allowed: " + allowed);
}

}  // namespace trtlookup
