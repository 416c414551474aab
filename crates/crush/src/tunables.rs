//! Tunables, whose defaults changed over Ceph's releases. They change placements, so they are part
//! of the map.

/// The tunables of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// Retries in the same bucket after a collision.
    pub choose_local_tries: u32,
    /// Retries in the same bucket by permutation.
    pub choose_local_fallback_tries: u32,
    /// Retries from the top. The number of attempts is one more.
    pub choose_total_tries: u32,
    /// After a failed leaf, the mapper does not retry below the same host.
    pub chooseleaf_descend_once: bool,
    /// The leaf's draws vary with the attempt (shifted right by one less than this number; 0: they
    /// do not vary).
    pub chooseleaf_vary_r: u8,
    /// The leaf's draws do not depend on the position in the result.
    pub chooseleaf_stable: bool,
    /// The version of the computation of straws when a straw bucket is made (0 or 1).
    pub straw_calc_version: u8,
    /// Bit n allows new buckets of the algorithm with number n. This is advice for editors of maps;
    /// the mapper does not use it.
    pub allowed_bucket_algs: u32,
    /// Passes of a multi-step-retry rule over the whole tree.
    pub msr_descents: u32,
    /// Draws of a multi-step-retry rule at one level to avoid collisions.
    pub msr_collision_tries: u32,
}

impl Tunables {
    /// The tunables of a map that has none: the values of Ceph's first releases. Text maps start
    /// from these, too.
    pub const LEGACY: Self = Self {
        choose_local_tries: 2,
        choose_local_fallback_tries: 5,
        choose_total_tries: 19,
        chooseleaf_descend_once: false,
        chooseleaf_vary_r: 0,
        chooseleaf_stable: false,
        straw_calc_version: 0,
        allowed_bucket_algs: 1 << 1 | 1 << 2 | 1 << 4,
        msr_descents: 100,
        msr_collision_tries: 100,
    };

    /// The profile of Ceph's argonaut release: [`Tunables::LEGACY`] by its other name.
    pub const ARGONAUT: Self = Self::LEGACY;

    /// The profile of Ceph's bobtail release: no local retries.
    pub const BOBTAIL: Self = Self {
        choose_local_tries: 0,
        choose_local_fallback_tries: 0,
        choose_total_tries: 50,
        chooseleaf_descend_once: true,
        ..Self::LEGACY
    };

    /// The profile of Ceph's firefly release: leaves vary with the attempt.
    pub const FIREFLY: Self = Self { chooseleaf_vary_r: 1, ..Self::BOBTAIL };

    /// The profile of Ceph's hammer release: straw2.
    pub const HAMMER: Self =
        Self { straw_calc_version: 1, allowed_bucket_algs: 0x36, ..Self::FIREFLY };

    /// The profile of Ceph's jewel release, which is still the default: stable leaves.
    pub const JEWEL: Self = Self { chooseleaf_stable: true, ..Self::HAMMER };
}

impl Default for Tunables {
    fn default() -> Self {
        Self::JEWEL
    }
}
