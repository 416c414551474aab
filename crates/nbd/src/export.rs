//! The exports of a server: each is one block device with a name.
//!
//! The host makes every promise here. The most important is [`Export::can_multi_conn`]. It may be
//! true only if all connections to the export submit to one backend queue, so that a flush on one
//! connection covers the writes that completed on any other.

use fieldstone_block::Info;

use crate::errors::ExportError;
use crate::limits::MAX_PAYLOAD_BYTES;
use crate::wire::{MAX_STRING_BYTES, flag};

/// The preferred block size for clients when the backend states none.
const DEFAULT_PREFERRED_BYTES: u32 = 4096;
/// The largest minimum block size that the protocol allows.
const MINIMUM_BLOCK_BYTES_MAX: u32 = 64 * 1024;

/// The position of an export in its [`ExportList`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportIndex(pub u32);

/// One block device offered to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The name that clients ask for; may be empty.
    pub name: String,
    /// A line for humans; may be empty.
    pub description: String,
    /// Size of the device.
    pub size_bytes: u64,
    /// The server refuses writes, trims and zeroings with `EPERM`.
    pub read_only: bool,
    /// All connections to this export reach one backend queue (see the module's head).
    pub can_multi_conn: bool,
    /// Requests start and end on multiples of this: a power of two, at most 64 KiB. 1: any
    /// alignment.
    pub minimum_block_bytes: u32,
    /// The best block size for the device: a power of two, at least 512 and the minimum.
    pub preferred_block_bytes: u32,
}

impl Export {
    /// An export of a backend that describes itself with `info`, without description and without
    /// the multi-connection promise.
    #[must_use]
    pub fn new(name: impl Into<String>, info: &Info) -> Self {
        let preferred = if info.preferred_bytes == 0 {
            DEFAULT_PREFERRED_BYTES
        } else {
            info.preferred_bytes.clamp(512, MAX_PAYLOAD_BYTES).next_power_of_two()
        };
        let minimum_block_bytes = info.block_bytes.max(1);
        Self {
            name: name.into(),
            description: String::new(),
            size_bytes: info.size_bytes,
            read_only: info.read_only,
            can_multi_conn: false,
            minimum_block_bytes,
            preferred_block_bytes: preferred.max(minimum_block_bytes),
        }
    }

    /// The transmission flags for a client with or without structured replies.
    #[must_use]
    pub fn transmission_flags(&self, structured: bool) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_CACHE;
        if self.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if structured {
            flags |= flag::SEND_DF;
        }
        if self.can_multi_conn {
            flags |= flag::CAN_MULTI_CONN;
        }
        flags
    }

    fn check(&self) -> Result<(), ExportError> {
        let name = || self.name.clone();
        if self.name.len() > MAX_STRING_BYTES {
            return Err(ExportError::StringTooLong { what: "name", name: name() });
        }
        if self.description.len() > MAX_STRING_BYTES {
            return Err(ExportError::StringTooLong { what: "description", name: name() });
        }
        let bytes = self.preferred_block_bytes;
        if !bytes.is_power_of_two() || !(512..=MAX_PAYLOAD_BYTES).contains(&bytes) {
            return Err(ExportError::PreferredBlock { name: name(), bytes });
        }
        let bytes = self.minimum_block_bytes;
        let bytes_max = self.preferred_block_bytes.min(MINIMUM_BLOCK_BYTES_MAX);
        if !bytes.is_power_of_two() || bytes > bytes_max {
            return Err(ExportError::MinimumBlock { name: name(), bytes, bytes_max });
        }
        if i64::try_from(self.size_bytes).is_err() {
            return Err(ExportError::TooLarge { name: name(), size_bytes: self.size_bytes });
        }
        Ok(())
    }
}

/// The exports of a server, shared by its sessions. Never empty. The first export is the default,
/// unless there is no default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportList {
    exports: Vec<Export>,
    has_default: bool,
}

impl ExportList {
    /// The list of `exports`, after checking each against the protocol's bounds.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub fn new(exports: Vec<Export>) -> Result<Self, ExportError> {
        if exports.is_empty() {
            return Err(ExportError::None);
        }
        let mut names = std::collections::HashSet::new();
        for export in &exports {
            export.check()?;
            if !names.insert(export.name.as_str()) {
                return Err(ExportError::DuplicateName { name: export.name.clone() });
            }
        }
        Ok(Self { exports, has_default: true })
    }

    /// The same list without a default export: the export that should be the default does not exist
    /// yet.
    #[must_use]
    pub fn without_default(self) -> Self {
        Self { has_default: false, ..self }
    }

    /// The same list with another size of the export at `index`.
    ///
    /// # Errors
    /// The protocol cannot express the size.
    pub fn resized(&self, index: ExportIndex, size_bytes: u64) -> Result<Self, ExportError> {
        let mut list = self.clone();
        if let Some(export) = list.exports.get_mut(index.0 as usize) {
            export.size_bytes = size_bytes;
            export.check()?;
        }
        Ok(list)
    }

    /// The exports in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Export] {
        &self.exports
    }

    /// The export at `index`, which must come from this list.
    #[must_use]
    pub fn get(&self, index: ExportIndex) -> Option<&Export> {
        self.exports.get(index.0 as usize)
    }

    /// The export named `name`. If no export has the empty name, the empty name means the default
    /// export.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<ExportIndex> {
        let exact = self.exports.iter().position(|export| export.name.as_bytes() == name);
        let found = exact.or_else(|| (name.is_empty() && self.has_default).then_some(0))?;
        u32::try_from(found).ok().map(ExportIndex)
    }
}
