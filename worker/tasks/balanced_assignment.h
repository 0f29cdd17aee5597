// Assigns points to clusters under a capacity: every point goes to its cheapest cluster with room. Pure.
//
// Rule: greedy by regret, for the generalised assignment problem (Martello and Toth 1981): the point that would lose
// most by getting its second-best open cluster instead of its best chooses first; a cluster is open until its load
// reaches the capacity. MoDE's hierarchical clustering (Ma et al. 2024, arXiv 2404.16030; MetaCLIP mode/prep_hrchy.py)
// solves the same step by an auction, whose prices need equal weights; ours takes weighted points too.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace atl::tasks {

// costs[i * clusters + c] is the cost of point i in cluster c, finite. weights[i] >= 0; clusters * capacity is at least
// their sum. Returns a cluster per point. No cluster's load exceeds capacity by the weight of its heaviest point or
// more. Ties go to the lower index.
std::vector<int32_t> AssignBalanced(std::span<const double> costs, int32_t clusters, std::span<const double> weights,
                                    double capacity);

// Moves single points and swaps pairs as long as that lowers the cost and raises no load above the capacity or its
// former value. Quadratic in the points, so meant for few.
void ImproveAssignment(std::span<const double> costs, int32_t clusters, std::span<const double> weights,
                       double capacity, std::vector<int32_t>* assignment);

}  // namespace atl::tasks
