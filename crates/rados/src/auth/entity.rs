//! The name of a party that has a key, such as `client.admin`.

use std::fmt;
use std::str::FromStr;

use crate::encoding::{DecodeError, Decoder, Encoder, EntityKind};

/// A party that has a key and capabilities: its kind and its id, as in `client.admin`.
///
/// This is not [`EntityName`](crate::encoding::EntityName), which has a number: many connected
/// clients with different global ids can be the same entity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entity {
    /// The kind.
    pub kind: EntityKind,
    /// The part behind the dot.
    pub id: String,
}

impl Entity {
    /// The client with this id.
    #[must_use]
    pub fn client(id: &str) -> Self {
        Self { kind: EntityKind::Client, id: id.to_owned() }
    }

    /// Reads one: u32 kind, string id.
    ///
    /// # Errors
    /// The bytes end, or there is no such kind.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let what = "the kind of an entity";
        let offset = from.offset();
        let number = from.u32(what)?;
        let kind = u8::try_from(number).ok().and_then(EntityKind::of);
        let kind = kind.ok_or_else(|| Decoder::refused(offset, number.into(), what))?;
        Ok(Self { kind, id: from.string("the id of an entity")? })
    }

    /// Writes it.
    pub fn encode(&self, into: &mut Encoder) {
        into.u32(self.kind as u32).string(&self.id);
    }
}

impl fmt::Display for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind.name(), self.id)
    }
}

/// A text is not the name of an entity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a name such as client.admin")]
pub struct NotAnEntity(pub String);

impl FromStr for Entity {
    type Err = NotAnEntity;

    fn from_str(text: &str) -> Result<Self, NotAnEntity> {
        use EntityKind::{Client, Manager, Mds, Monitor, Osd};
        let refused = || NotAnEntity(text.to_owned());
        let (kind, id) = text.split_once('.').ok_or_else(refused)?;
        let kind = [Monitor, Mds, Osd, Client, Manager].into_iter().find(|k| k.name() == kind);
        if id.is_empty() {
            return Err(refused());
        }
        Ok(Self { kind: kind.ok_or_else(refused)?, id: id.to_owned() })
    }
}
