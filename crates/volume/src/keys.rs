//! New secrets of the pool, while the volume serves.
//!
//! A volume with the secrets signs every request that it sends after [`VolumeCore::set_keys`] with
//! the new secret. A volume without them does so once the world has issued a capability of the new
//! secret ([`VolumeEvent::Renew`](crate::VolumeEvent::Renew) asks it to). Requests that the volume
//! sent before are on their way to nodes, or wait there, with the old one. Nodes check a capability
//! when the request arrives. So the old secret may be retired once all these requests are answered;
//! the status says when ([`VolumeCore::oldest_generation`]).

use fieldstone_proto::{CapabilityError, KeyGeneration, PoolKeys};

use crate::core::VolumeCore;
use crate::interface::Authority;

/// The requests that were signed before the last change of the signing secret.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reissue {
    /// The generation that signs the next request; `None` before the first capability.
    signs: Option<KeyGeneration>,
    /// The generation that signed before, and the number of calls made until the change.
    before: Option<(KeyGeneration, u64)>,
}

impl VolumeCore {
    /// From now on these secrets count.
    pub fn set_keys(&mut self, keys: PoolKeys) {
        self.config.authority = Authority::Secrets(keys);
        self.renew_capabilities();
    }

    /// This generation signs the next request.
    pub fn note_signing(&mut self, generation: KeyGeneration) {
        if let Some(signed) = self.writer.reissue.signs
            && signed != generation
        {
            // An older change may not be through yet.
            let oldest = self.oldest_generation().min(signed);
            self.writer.reissue.before = Some((oldest, self.calls.made()));
        }
        self.writer.reissue.signs = Some(generation);
    }

    /// The oldest generation of the pool's secret that signs a request which has no answer yet, or
    /// that would sign the next one.
    #[must_use]
    pub fn oldest_generation(&self) -> KeyGeneration {
        match self.writer.reissue.before {
            Some((generation, made)) if self.calls.wait_for_any_of_first(made) => generation,
            _ => self.writer.reissue.signs.unwrap_or_default(),
        }
    }
}

/// Why the node `who` refuses a capability of the volume, as text for people.
#[must_use]
pub fn refusal(error: CapabilityError, who: &str) -> String {
    match error {
        // Nodes look at the expiry only if they know the secret.
        CapabilityError::Retired
        | CapabilityError::UnknownGeneration
        | CapabilityError::Expired => {
            format!("{who} refuses the volume's capability: {error}")
        }
        CapabilityError::Forged | CapabilityError::Rights | CapabilityError::Range => {
            format!("it is {who}, which does not know this pool's secret")
        }
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_proto::{KeyGeneration, MasterKey, NodeIndex, RequestBody};

    use crate::interface::Authority;

    use crate::calls::Waiter;
    use crate::script::{Script, Sent};

    /// Sends a request to node 0; returns it.
    fn send(script: &mut Script) -> Sent {
        let (filler, _) = fieldstone_tasks::oneshot();
        script.core(|core| {
            core.send(NodeIndex(0), RequestBody::Stat, Vec::new(), Waiter::Task(filler));
        });
        script.sent_one()
    }

    /// Requests are signed with the new secret at once. The status shows the old one until the last
    /// request that it signed is answered.
    #[test]
    fn a_new_secret_signs_the_next_request_and_the_old_ones_are_waited_for() {
        let mut script = Script::serving(8);
        let oldest = |script: &mut Script| script.core(|core| core.oldest_generation());
        let old = send(&mut script);
        assert_eq!(old.request.capability.rights.generation(), KeyGeneration(0));
        let keys = script.core(|core| match core.config.authority {
            Authority::Secrets(keys) => keys,
            Authority::World => unreachable!("the script has the secrets"),
        });
        let staged = keys.stage(MasterKey([8; 16])).expect("settled");
        script.core(|core| core.set_keys(staged));
        let between = send(&mut script);
        assert_eq!(between.request.capability.rights.generation(), KeyGeneration(0), "only staged");
        let issuing = staged.issue().expect("staged");
        script.core(|core| core.set_keys(issuing));
        let new = send(&mut script);
        assert_eq!(new.request.capability.rights.generation(), KeyGeneration(1));
        let (volume, epoch) = (new.request.capability.volume, new.request.capability.epoch);
        let key = issuing.derive_for(KeyGeneration(1), volume, epoch).expect("accepted");
        assert_eq!(new.request.capability.check(&key, fieldstone_proto::Rights::WRITE, 0), Ok(()));
        assert_eq!(oldest(&mut script), KeyGeneration(0));
        for request in [new, old] {
            script.done(&request);
            assert_eq!(oldest(&mut script), KeyGeneration(0));
        }
        script.done(&between);
        assert_eq!(oldest(&mut script), KeyGeneration(1));
    }
}
