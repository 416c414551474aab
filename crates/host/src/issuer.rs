//! Who issues the capabilities of a volume.
//!
//! In a process with the pool's secrets, the volume issues for itself. A client of the pool does
//! not have these secrets. Its volume asks an [`Issuer`], which answers with mail to the volume's
//! store. In the product, the issuer is a thread that asks the pool's metadata service (the crate
//! `server`).

use std::fmt;
use std::sync::Arc;

use fieldstone_proto::{Capability, Epoch, KeyGeneration, NodeIndex};
use fieldstone_uring::Address;
use fieldstone_volume::{Authority, VolumeEvent};

use crate::keys::SharedKeys;
use crate::store::Mailer;

/// Who issues the capabilities of a volume.
#[derive(Debug)]
pub enum VolumeAuthority {
    /// The volume itself, with these secrets of its pool.
    Secrets(SharedKeys),
    /// The issuer.
    Issuer(Box<dyn Issuer>),
}

impl VolumeAuthority {
    /// The authority for the configuration of a volume that opens now.
    #[must_use]
    pub fn for_volume(&self) -> Authority {
        match self {
            Self::Secrets(keys) => Authority::Secrets(keys.get()),
            Self::Issuer(_) => Authority::World,
        }
    }
}

/// Issues the capabilities of one volume. The calls must not block. The store drops its issuer when
/// the store is released.
pub trait Issuer: fmt::Debug + Send {
    /// The store has opened. The issuer sends it [`IssuerMail`] from now on.
    fn start(&mut self, store: Mailer);

    /// The volume needs a capability for this epoch. If the mail with it is lost, the volume asks
    /// again.
    fn ask(&mut self, epoch: Epoch);

    /// The answer to [`IssuerMail::TellOldest`]: the oldest generation of the pool's secret that
    /// signs a request which the volume has sent and that has no answer, or the next request.
    fn tell_oldest(&mut self, oldest: KeyGeneration);
}

/// Mail from an issuer to the store of its volume ([`Mailer::send`]).
#[derive(Debug)]
pub enum IssuerMail {
    /// A capability.
    Issued {
        /// The capability.
        capability: Capability,
        /// How long it is valid, from its issue.
        lifetime_ns: u64,
    },
    /// There will be no capabilities any more, for this reason. The volume fails.
    Refused(String),
    /// The pool has a new secret: the volume is to ask anew.
    Renew,
    /// The issuer wants to know the oldest generation in use ([`Issuer::tell_oldest`]).
    TellOldest,
}

impl IssuerMail {
    /// The event for the volume, if the mail is one.
    pub(crate) fn event(self) -> Option<VolumeEvent> {
        match self {
            Self::Issued { capability, lifetime_ns } => {
                Some(VolumeEvent::Issued { capability, lifetime_ns })
            }
            Self::Refused(reason) => Some(VolumeEvent::NotIssued(reason)),
            Self::Renew => Some(VolumeEvent::Renew),
            Self::TellOldest => None,
        }
    }
}

/// The addresses of a pool's nodes, as they are at present.
pub trait NodeDirectory: fmt::Debug + Send + Sync {
    /// The address of a node; `None` while it has none.
    fn address(&self, node: NodeIndex) -> Option<Address>;
}

/// A directory that several places share.
pub type SharedDirectory = Arc<dyn NodeDirectory>;
