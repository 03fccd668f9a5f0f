//! CPU weights of cgroup version 2 as shares of version 1.
//!
//! Two formulas are in use, and a weight alone doesn't tell which one it was made by: runc 1.3.2 and
//! crun 1.23 changed theirs, so that the default of 1024 shares is the default weight of 100. The
//! kubelet and cAdvisor still have the older one.

/// Least and most shares.
const SHARES: (u64, u64) = (2, 262_144);
/// Most weight; the least is 1.
const WEIGHT_MAX: u64 = 10_000;

/// The shares of a cgroup with this weight: `wanted`, if either formula makes the weight of them.
/// Otherwise they are those of the older formula, as cAdvisor has it.
pub(super) fn shares(weight: u64, wanted: Option<u64>) -> u64 {
    let is_of = |shares: &u64| is_linear(weight, *shares) || is_by_curve(weight, *shares);
    wanted.filter(is_of).unwrap_or_else(|| {
        let (least, most) = SHARES;
        let range = weight.saturating_sub(1).saturating_mul(most - least);
        range / (WEIGHT_MAX - 1) + least
    })
}

/// Whether the older formula makes this weight of shares.
///
/// Upstream: `pkg/kubelet/cm/cgroup_manager_linux.go` (`getCPUWeight`).
fn is_linear(weight: u64, shares: u64) -> bool {
    let (least, most) = SHARES;
    let range = (shares.clamp(least, most) - least) * (WEIGHT_MAX - 1);
    weight == 1 + range / (most - least)
}

/// Whether the newer formula makes this weight of shares. At both ends it makes the same as the
/// older one.
///
/// Upstream: `ConvertCPUSharesToCgroupV2Value` of `github.com/opencontainers/cgroups`, `utils.go`.
fn is_by_curve(weight: u64, shares: u64) -> bool {
    let (Ok(weight), Ok(shares)) = (u32::try_from(weight), u32::try_from(shares)) else {
        return false;
    };
    let log = f64::from(shares.max(1)).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    // Both are whole numbers.
    (10_f64.powf(exponent).ceil() - f64::from(weight)).abs() < 0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_the_wanted_ones_by_either_formula() {
        for (weight, wanted, expected) in [
            // The ends are the same.
            (1, Some(2), 2),
            (10_000, Some(262_144), 262_144),
            // runc before 1.3.2, and since.
            (39, Some(1024), 1024),
            (100, Some(1024), 1024),
            (4, Some(102), 102),
            (17, Some(102), 102),
            (20, Some(512), 512),
            (59, Some(512), 512),
            (79, Some(2048), 2048),
            (174, Some(2048), 2048),
            // Set by somebody else, or nobody knows what was wanted.
            (101, Some(1024), 2623),
            (99, Some(1024), 2571),
            (100, None, 2597),
            (39, None, 998),
            (0, Some(0), 2),
            (u64::MAX, Some(u64::MAX), u64::MAX / 9_999 + 2),
        ] {
            // usage 35a
            assert_eq!(shares(weight, wanted), expected, "{weight} {wanted:?}");
        }
    }
}
