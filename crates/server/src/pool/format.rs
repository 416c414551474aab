//! The file `pool.json`.
//!
//! A reader checks `format` before any other field. It refuses a newer format, and changes nothing
//! then. An unknown field in a known format means damage.

use anyhow::{Context, bail};
use fieldstone_codes::Profile;
use fieldstone_proto::{Encode, PoolId, Strategy};
use serde::{Deserialize, Serialize};

use super::layout::{Layout, SLOT_BYTES_MAX};

/// The newest format that this version reads.
pub const FORMAT: u32 = 3;

/// The format that added `replicate`.
const FORMAT_REPLICATE: u32 = 2;

/// The format of a pool without any addition of a later format. So releases that do not know an
/// addition open the pools that do not use it, and no others.
const FORMAT_BASIC: u32 = 1;

/// The content of `pool.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolFile {
    /// Version of this file's format.
    format: u32,
    /// The pool's id: 32 hexadecimal digits.
    pool: String,
    /// Number of nodes.
    pub nodes: u16,
    /// The code of volumes that are made without another code.
    code: String,
    /// Size of a slot on the nodes, in bytes.
    pub slot_bytes: u32,
    /// Number of slots on each node.
    pub slots_per_node: u32,
    /// How nodes get the journal, from format 2 on; flat if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replicate: Option<String>,
    /// Who makes parity, from format 3 on; the volume if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encode: Option<String>,
}

/// The field that every version of the format has.
#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

impl PoolFile {
    /// The description of a pool.
    pub fn new(
        id: PoolId,
        nodes: u16,
        profile: Profile,
        layout: Layout,
        (replicate, encode): (Strategy, Encode),
    ) -> Self {
        let replicate = (replicate != Strategy::Flat).then(|| replicate.to_string());
        let encode = (encode != Encode::Client).then(|| encode.to_string());
        Self {
            format: match (&encode, &replicate) {
                (Some(_), _) => FORMAT,
                (None, Some(_)) => FORMAT_REPLICATE,
                (None, None) => FORMAT_BASIC,
            },
            pool: id.to_string(),
            nodes,
            code: profile.to_string(),
            slot_bytes: layout.slot_bytes,
            slots_per_node: layout.slots,
            replicate,
            encode,
        }
    }

    /// Reads and checks a description.
    pub fn parse(text: &[u8]) -> anyhow::Result<Self> {
        let versioned: Versioned = serde_json::from_slice(text)
            .context("it is damaged; restore it from a copy, the nodes do not hold it")?;
        if versioned.format > FORMAT {
            bail!(
                "format {} is of a newer version of fieldstone; this one reads up to {FORMAT}",
                versioned.format
            );
        }
        let file: Self = serde_json::from_slice(text)
            .context("it is damaged; restore it from a copy, the nodes do not hold it")?;
        if file.nodes == 0 {
            bail!("it is damaged: a pool without nodes");
        }
        let slot_ok = file.slot_bytes > 0
            && file.slot_bytes.is_multiple_of(4096)
            && file.slot_bytes <= SLOT_BYTES_MAX;
        if !slot_ok || file.slots_per_node == 0 {
            bail!(
                "it is damaged: {} slots of {} bytes are impossible",
                file.slots_per_node,
                file.slot_bytes
            );
        }
        if file.replicate.is_some() && file.format == FORMAT_BASIC {
            bail!("it is damaged: format {FORMAT_BASIC} has no field \"replicate\"");
        }
        if file.encode.is_some() && file.format < FORMAT {
            bail!("it is damaged: format {} has no field \"encode\"", file.format);
        }
        Ok(file)
    }

    /// How nodes get the journal.
    pub fn replicate(&self) -> anyhow::Result<Strategy> {
        match &self.replicate {
            Some(name) => Ok(name.parse()?),
            None => Ok(Strategy::Flat),
        }
    }

    /// Who makes parity.
    pub fn encode(&self) -> anyhow::Result<Encode> {
        match &self.encode {
            Some(name) => Ok(name.parse()?),
            None => Ok(Encode::Client),
        }
    }

    /// The default code.
    pub fn profile(&self) -> anyhow::Result<Profile> {
        Ok(self.code.parse()?)
    }

    /// The pool's id.
    pub fn pool_id(&self) -> anyhow::Result<PoolId> {
        u128::from_str_radix(&self.pool, 16)
            .map(PoolId)
            .with_context(|| format!("it is damaged: {:?} is not a pool id", self.pool))
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("numbers and strings always serialise") + "\n"
    }
}
