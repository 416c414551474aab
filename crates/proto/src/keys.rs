//! The secrets of a pool, and how one replaces the other.
//!
//! A pool begins with the secret of generation 0. A *rotation* replaces the secret of generation g
//! by that of g + 1, in three steps:
//!
//! ```text
//!              stage             issue              retire
//!  Settled(g) -------> Staged(g) -----> Issuing(g) -------> Settled(g + 1)
//!
//!   accepted:  g         g, g + 1         g, g + 1            g + 1
//!   signs:     g         g                g + 1               g + 1
//! ```
//!
//! Each process has its own copy of the keys, and learns of a step at its own time. Between two
//! processes that are one step apart, no capability is refused: what one of them signs with, the
//! other accepts. So a rotation refuses no request as long as no step begins before all processes
//! have made the step before.
//!
//! At any time at most two secrets are accepted. The first secret, the *origin*, also stays as a
//! part of the pool's identity: the superblocks of the nodes have it.
//!
//! A capability names the generation of the secret that signs it
//! ([`Rights::generation`](crate::Rights::generation)). Capabilities of releases without
//! generations name generation 0.

use crate::capability::{CapabilityError, CapabilityKey, MasterKey};
use crate::ids::{Epoch, VolumeId};

/// Which of the pool's secrets, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyGeneration(pub u16);

impl KeyGeneration {
    fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

impl std::fmt::Display for KeyGeneration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "generation {}", self.0)
    }
}

/// How far a rotation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// There is none under way.
    Settled,
    /// Nodes accept this next secret too. No capability is signed with it yet.
    Staged(MasterKey),
    /// This next secret signs capabilities. Nodes accept the old one too.
    Issuing(MasterKey),
}

impl Rotation {
    /// The next secret, if there is one.
    #[must_use]
    pub fn next_secret(&self) -> Option<MasterKey> {
        match self {
            Self::Settled => None,
            Self::Staged(secret) | Self::Issuing(secret) => Some(*secret),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Settled => 0,
            Self::Staged(_) => 1,
            Self::Issuing(_) => 2,
        }
    }
}

/// Why keys do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RotationError {
    /// The step does not follow the last one.
    #[error("this step of a rotation does not follow the last one")]
    Step,
    /// The new secret is the old one.
    #[error("the new secret is the one before")]
    SameSecret,
    /// There is no further generation.
    #[error("generation 65535 of the secret is the last one")]
    Last,
    /// The keys are older than those that are in force.
    #[error("they are older than those in force: secrets that were retired would be valid again")]
    Older,
    /// The keys are those of another pool, or another secret has the same generation.
    #[error("they are not of this pool, or a generation has another secret")]
    Foreign,
}

/// The secrets that a pool's nodes accept, and the one that signs capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolKeys {
    origin: MasterKey,
    generation: KeyGeneration,
    secret: MasterKey,
    rotation: Rotation,
}

impl From<MasterKey> for PoolKeys {
    /// The keys of a pool whose secret was never replaced.
    fn from(origin: MasterKey) -> Self {
        let (generation, rotation) = (KeyGeneration(0), Rotation::Settled);
        Self { origin, generation, secret: origin, rotation }
    }
}

impl PoolKeys {
    /// Keys from their parts, as a file has them: the first secret of the pool, the oldest accepted
    /// generation with its secret, and the rotation under way.
    ///
    /// # Errors
    /// The parts contradict each other.
    pub fn from_parts(
        origin: MasterKey,
        (generation, secret): (KeyGeneration, MasterKey),
        rotation: Rotation,
    ) -> Result<Self, RotationError> {
        if generation == KeyGeneration(0) && secret != origin {
            return Err(RotationError::Foreign);
        }
        if let Some(next) = rotation.next_secret() {
            generation.next().ok_or(RotationError::Last)?;
            if next == secret {
                return Err(RotationError::SameSecret);
            }
        }
        Ok(Self { origin, generation, secret, rotation })
    }

    /// The pool's first secret. It is a part of the pool's identity, and signs only while its
    /// generation is accepted.
    #[must_use]
    pub fn origin(&self) -> MasterKey {
        self.origin
    }

    /// The oldest accepted generation, and its secret.
    #[must_use]
    pub fn oldest(&self) -> (KeyGeneration, MasterKey) {
        (self.generation, self.secret)
    }

    /// The newest accepted generation, and its secret.
    #[must_use]
    pub fn newest(&self) -> (KeyGeneration, MasterKey) {
        match (self.rotation.next_secret(), self.generation.next()) {
            (Some(secret), Some(generation)) => (generation, secret),
            _ => self.oldest(),
        }
    }

    /// The generation that signs, and its secret.
    #[must_use]
    pub fn issuing(&self) -> (KeyGeneration, MasterKey) {
        match self.rotation {
            Rotation::Settled | Rotation::Staged(_) => self.oldest(),
            Rotation::Issuing(_) => self.newest(),
        }
    }

    /// The rotation under way.
    #[must_use]
    pub fn rotation(&self) -> Rotation {
        self.rotation
    }

    /// The key that signs capabilities of `volume` at `epoch`.
    #[must_use]
    pub fn derive(&self, volume: VolumeId, epoch: Epoch) -> CapabilityKey {
        let (generation, secret) = self.issuing();
        secret.derive(volume, epoch).of_generation(generation)
    }

    /// The key that checks capabilities of this generation.
    ///
    /// # Errors
    /// The generation is retired ([`CapabilityError::Retired`]) or not known
    /// ([`CapabilityError::UnknownGeneration`]).
    pub fn derive_for(
        &self,
        generation: KeyGeneration,
        volume: VolumeId,
        epoch: Epoch,
    ) -> Result<CapabilityKey, CapabilityError> {
        self.check(generation)?;
        let (oldest, newest) = (self.oldest(), self.newest());
        let (_, secret) = if generation == oldest.0 { oldest } else { newest };
        Ok(secret.derive(volume, epoch).of_generation(generation))
    }

    /// Checks that capabilities of this generation are accepted.
    ///
    /// # Errors
    /// As [`PoolKeys::derive_for`].
    pub fn check(&self, generation: KeyGeneration) -> Result<(), CapabilityError> {
        if generation < self.generation {
            return Err(CapabilityError::Retired);
        }
        if generation > self.newest().0 {
            return Err(CapabilityError::UnknownGeneration);
        }
        Ok(())
    }

    /// Begins a rotation to `secret`.
    ///
    /// # Errors
    /// A rotation is under way, or there is no further generation.
    pub fn stage(&self, secret: MasterKey) -> Result<Self, RotationError> {
        if self.rotation != Rotation::Settled {
            return Err(RotationError::Step);
        }
        if secret == self.origin {
            return Err(RotationError::SameSecret);
        }
        let oldest = (self.generation, self.secret);
        Self::from_parts(self.origin, oldest, Rotation::Staged(secret))
    }

    /// From now on the staged secret signs.
    ///
    /// # Errors
    /// No secret is staged.
    pub fn issue(&self) -> Result<Self, RotationError> {
        match self.rotation {
            Rotation::Staged(secret) => Ok(Self { rotation: Rotation::Issuing(secret), ..*self }),
            Rotation::Settled | Rotation::Issuing(_) => Err(RotationError::Step),
        }
    }

    /// From now on the old secret is refused: every capability that it signed is revoked.
    ///
    /// # Errors
    /// The next secret does not sign yet.
    pub fn retire(&self) -> Result<Self, RotationError> {
        let Rotation::Issuing(_) = self.rotation else { return Err(RotationError::Step) };
        let (generation, secret) = self.newest();
        Ok(Self { generation, secret, rotation: Rotation::Settled, ..*self })
    }

    /// Checks that a process with these keys may take `other` instead. Steps are never undone, so
    /// that no old copy of a file makes a retired secret valid again.
    ///
    /// # Errors
    /// `other` is older, or is not of this pool.
    pub fn check_successor(&self, other: &Self) -> Result<(), RotationError> {
        let mine = [self.oldest(), self.newest()];
        let differs = |&(generation, secret): &(KeyGeneration, MasterKey)| {
            mine.iter().any(|known| known.0 == generation && known.1 != secret)
        };
        if self.origin != other.origin || [other.oldest(), other.newest()].iter().any(differs) {
            return Err(RotationError::Foreign);
        }
        let place = |keys: &Self| (keys.generation, keys.rotation.rank());
        if place(other) < place(self) { Err(RotationError::Older) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: MasterKey = MasterKey([1; 16]);
    const NEXT: MasterKey = MasterKey([2; 16]);

    /// The keys after each step of two rotations.
    fn life() -> Vec<PoolKeys> {
        let mut all = vec![PoolKeys::from(ORIGIN)];
        for secret in [NEXT, MasterKey([3; 16])] {
            let staged = all.last().expect("one").stage(secret).expect("settled");
            let issuing = staged.issue().expect("staged");
            all.extend([staged, issuing, issuing.retire().expect("issuing")]);
        }
        all
    }

    #[test]
    fn steps_come_in_one_order_only() {
        let [settled, staged, issuing, retired] = life()[..4] else { unreachable!("four") };
        assert_eq!(settled.issue(), Err(RotationError::Step));
        assert_eq!(settled.retire(), Err(RotationError::Step));
        assert_eq!(settled.stage(ORIGIN), Err(RotationError::SameSecret));
        assert_eq!(staged.stage(MasterKey([4; 16])), Err(RotationError::Step));
        assert_eq!(staged.retire(), Err(RotationError::Step));
        assert_eq!(issuing.stage(MasterKey([4; 16])), Err(RotationError::Step));
        assert_eq!(issuing.issue(), Err(RotationError::Step));
        assert_eq!(retired.stage(NEXT), Err(RotationError::SameSecret));
        assert_eq!(retired.stage(ORIGIN), Err(RotationError::SameSecret), "it was retired");
        let end = (KeyGeneration(u16::MAX), NEXT);
        let last = PoolKeys::from_parts(ORIGIN, end, Rotation::Settled).expect("it is the last");
        assert_eq!(last.stage(MasterKey([4; 16])), Err(RotationError::Last));
    }

    #[test]
    fn each_step_accepts_and_signs_what_the_table_says() {
        let table = [(0, 0, 0), (0, 1, 0), (0, 1, 1), (1, 1, 1), (1, 2, 1), (1, 2, 2), (2, 2, 2)];
        for (keys, (oldest, newest, issuing)) in life().into_iter().zip(table) {
            assert_eq!(keys.oldest().0, KeyGeneration(oldest));
            assert_eq!(keys.newest().0, KeyGeneration(newest));
            assert_eq!(keys.issuing().0, KeyGeneration(issuing));
            for generation in 0..4 {
                let expected = match generation {
                    old if old < oldest => Err(CapabilityError::Retired),
                    new if new > newest => Err(CapabilityError::UnknownGeneration),
                    _ => Ok(()),
                };
                assert_eq!(keys.check(KeyGeneration(generation)), expected);
            }
        }
    }

    /// The rule that makes rotations invisible: neighbours in time understand each other.
    #[test]
    fn processes_that_are_one_step_apart_accept_each_other() {
        for pair in life().windows(2) {
            for (signs, accepts) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
                let (generation, _) = signs.issuing();
                let key = signs.derive(VolumeId(9), Epoch(3));
                let other = accepts.derive_for(generation, VolumeId(9), Epoch(3));
                assert!(other.expect("accepted") == key, "{signs:?} {accepts:?}");
            }
        }
    }

    #[test]
    fn a_process_takes_later_keys_of_its_pool_and_no_others() {
        let life = life();
        for (at, keys) in life.iter().enumerate() {
            for (other_at, other) in life.iter().enumerate() {
                let expected = if other_at < at { Err(RotationError::Older) } else { Ok(()) };
                assert_eq!(keys.check_successor(other), expected, "{at} {other_at}");
            }
            let foreign = PoolKeys::from(MasterKey([8; 16]));
            assert_eq!(keys.check_successor(&foreign), Err(RotationError::Foreign));
        }
        let other = life[0].stage(MasterKey([8; 16])).expect("settled");
        assert_eq!(life[1].check_successor(&other), Err(RotationError::Foreign));
    }

    #[test]
    fn parts_that_contradict_each_other_are_refused() {
        let part = |generation, secret, rotation| {
            PoolKeys::from_parts(ORIGIN, (KeyGeneration(generation), secret), rotation)
        };
        assert_eq!(part(0, NEXT, Rotation::Settled), Err(RotationError::Foreign));
        assert_eq!(part(1, NEXT, Rotation::Staged(NEXT)), Err(RotationError::SameSecret));
        assert_eq!(part(u16::MAX, NEXT, Rotation::Issuing(ORIGIN)), Err(RotationError::Last));
    }
}
