//! Records that are stored or answered as a whole.

use fieldstone_rados::encoding::{DecodeError, Decoder, Encoder, Time};

use super::HEAD;

/// An optional number: u8 0, or u8 1 and the number.
pub(super) fn decode_option(from: &mut Decoder) -> Result<Option<u64>, DecodeError> {
    match from.bool("whether there is a value")? {
        true => from.u64("an optional value").map(Some),
        false => Ok(None),
    }
}

pub(super) fn encode_option(value: Option<u64>, into: &mut Encoder) {
    into.bool(value.is_some());
    if let Some(value) = value {
        into.u64(value);
    }
}

/// The parent of a clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) pool: i64,
    pub(super) namespace: String,
    pub(super) image: String,
    pub(super) snap: u64,
    /// How many bytes of the parent show through the image; none for the present state after the
    /// clone was flattened, while snapshots still need the parent.
    pub(super) overlap: Option<u64>,
}

impl Parent {
    pub(super) fn none() -> Self {
        let (namespace, image) = (String::new(), String::new());
        Self { pool: -1, namespace, image, snap: HEAD, overlap: None }
    }

    pub(super) fn exists(&self) -> bool {
        self.pool >= 0 && !self.image.is_empty() && self.snap != HEAD
    }

    pub(super) fn is_same_image(&self, other: &Self) -> bool {
        (self.pool, &self.namespace, &self.image, self.snap)
            == (other.pool, &other.namespace, &other.image, other.snap)
    }

    /// The stored form.
    pub(super) fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let section = from.section(2, "a parent")?;
        let mut fields = section.fields;
        let pool = fields.i64("a pool")?;
        let namespace =
            if section.version >= 2 { fields.string("a namespace")? } else { String::new() };
        let (image, snap) = (fields.string("an image")?, fields.u64("a snapshot")?);
        let overlap = match section.version {
            1 => Some(fields.u64("an overlap")?),
            _ => decode_option(&mut fields)?,
        };
        Ok(Self { pool, namespace, image, snap, overlap })
    }

    pub(super) fn encode(&self, into: &mut Encoder) {
        into.section(2, 2, |into| {
            into.i64(self.pool).string(&self.namespace).string(&self.image).u64(self.snap);
            encode_option(self.overlap, into);
        });
    }

    /// The form without the overlap, in requests and answers.
    pub(super) fn decode_spec(from: &mut Decoder) -> Result<Self, DecodeError> {
        let mut fields = from.section(1, "the name of a parent")?.fields;
        let (pool, namespace) = (fields.i64("a pool")?, fields.string("a namespace")?);
        let (image, snap) = (fields.string("an image")?, fields.u64("a snapshot")?);
        Ok(Self { pool, namespace, image, snap, overlap: None })
    }

    pub(super) fn encode_spec(&self, into: &mut Encoder) {
        into.section(1, 1, |into| {
            into.i64(self.pool).string(&self.namespace).string(&self.image).u64(self.snap);
        });
    }
}

/// Why a snapshot exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Namespace {
    User,
    Group {
        pool: i64,
        group: String,
        snapshot: String,
    },
    /// Deleted, but kept for its clones.
    Trash {
        name: String,
        kind: u32,
    },
}

impl Namespace {
    /// `None` for a kind that the model does not know.
    pub(super) fn decode(from: &mut Decoder) -> Result<Option<Self>, DecodeError> {
        let mut fields = from.section(1, "the kind of a snapshot")?.fields;
        Ok(Some(match fields.u32("the kind of a snapshot")? {
            0 => Namespace::User,
            1 => {
                let pool = fields.i64("a pool")?;
                let group = fields.string("a group")?;
                Namespace::Group { pool, group, snapshot: fields.string("a snapshot")? }
            }
            2 => {
                let name = fields.string("a name")?;
                Namespace::Trash { name, kind: fields.u32("the kind of a snapshot")? }
            }
            _ => return Ok(None),
        }))
    }

    pub(super) fn encode(&self, into: &mut Encoder) {
        into.section(1, 1, |into| match self {
            Namespace::User => {
                into.u32(0);
            }
            Namespace::Group { pool, group, snapshot } => {
                into.u32(1).i64(*pool).string(group).string(snapshot);
            }
            Namespace::Trash { name, kind } => {
                into.u32(2).string(name).u32(*kind);
            }
        });
    }

    pub(super) fn number(&self) -> u32 {
        match self {
            Namespace::User => 0,
            Namespace::Group { .. } => 1,
            Namespace::Trash { .. } => 2,
        }
    }
}

/// A snapshot of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) image_bytes: u64,
    /// 0 unprotected, 1 being unprotected, 2 protected.
    pub(super) protection: u8,
    pub(super) flags: u64,
    pub(super) namespace: Namespace,
    pub(super) time: Time,
    pub(super) children: u32,
    pub(super) parent_overlap: Option<u64>,
}

impl Snapshot {
    pub(super) fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let offset = from.offset();
        let section = from.section(8, "a snapshot")?.at_least(8, "a snapshot")?;
        let mut fields = section.fields;
        Ok(Self {
            id: fields.u64("the number of a snapshot")?,
            name: fields.string("the name of a snapshot")?,
            image_bytes: fields.u64("the size of a snapshot")?,
            protection: fields.u8("protection")?,
            flags: fields.u64("flags")?,
            namespace: Namespace::decode(&mut fields)?
                .ok_or_else(|| Decoder::refused(offset, 3, "the kind of a snapshot"))?,
            time: Time::decode(&mut fields)?,
            children: fields.u32("the number of children")?,
            parent_overlap: decode_option(&mut fields)?,
        })
    }

    pub(super) fn encode(&self, into: &mut Encoder) {
        into.section(8, 8, |into| {
            into.u64(self.id).string(&self.name).u64(self.image_bytes);
            into.u8(self.protection).u64(self.flags);
            self.namespace.encode(into);
            self.time.encode(into);
            into.u32(self.children);
            encode_option(self.parent_overlap, into);
        });
    }

    /// The form that `snapshot_get` answers.
    pub(super) fn encode_info(&self, into: &mut Encoder) {
        into.section(1, 1, |into| {
            into.u64(self.id);
            self.namespace.encode(into);
            into.string(&self.name).u64(self.image_bytes);
            self.time.encode(into);
            into.u32(self.children);
        });
    }
}

/// An image that is a clone, as its parent knows it: pool, namespace, id. They are in order of
/// pool, namespace and id.
pub(super) type Child = (i64, String, String);

pub(super) fn decode_child(from: &mut Decoder) -> Result<Child, DecodeError> {
    let section = from.section(2, "a child")?;
    let mut fields = section.fields;
    let (pool, image) = (fields.i64("a pool")?, fields.string("an image")?);
    let namespace =
        if section.version >= 2 { fields.string("a namespace")? } else { String::new() };
    Ok((pool, namespace, image))
}

pub(super) fn encode_child((pool, namespace, image): &Child, into: &mut Encoder) {
    into.section(2, 1, |into| {
        into.i64(*pool).string(image).string(namespace);
    });
}
