//! What carries a course out: a model of a cluster, or a real one.

use std::rc::Rc;

use bytes::Bytes;
use fieldstone_block::{Op, Payload, Piece};
use fieldstone_rbd::RbdError;
use fieldstone_rbd::pool::{CreateOptions, Pool};

/// A request on the open image.
#[derive(Clone, Debug)]
pub struct Io {
    pub op: Op,
    pub offset: u64,
    pub len: u64,
    pub data: Bytes,
    pub no_hole: bool,
}

/// A change of images that is no request on an open one.
#[derive(Clone, Debug)]
pub enum Order {
    Create(String, CreateOptions),
    Clone { parent: String, snapshot: String, child: String, options: CreateOptions },
    Flatten(String),
    Resize(String, u64),
    Snapshot(String, String),
    RemoveSnapshot(String, String),
    Protect(String, String),
    Unprotect(String, String),
    Rollback(String, String),
    Remove(String),
}

impl Order {
    /// Carries the order out.
    pub async fn obey(self, pool: Rc<Pool>) -> Result<(), RbdError> {
        match self {
            Self::Create(image, options) => pool.create(&image, &options).await.map(drop),
            Self::Clone { parent, snapshot, child, options } => {
                pool.clone_image(&pool, &parent, &snapshot, &child, &options).await.map(drop)
            }
            Self::Flatten(image) => pool.flatten(&image, &mut |_, _| {}).await,
            Self::Resize(image, size) => pool.resize(&image, size, true, &mut |_, _| {}).await,
            Self::Snapshot(image, name) => pool.create_snapshot(&image, &name).await.map(drop),
            Self::RemoveSnapshot(image, name) => pool.remove_snapshot(&image, &name).await,
            Self::Protect(image, name) => pool.protect_snapshot(&image, &name).await,
            Self::Unprotect(image, name) => pool.unprotect_snapshot(&image, &name).await,
            Self::Rollback(image, name) => {
                pool.rollback_snapshot(&image, &name, &mut |_, _| {}).await
            }
            Self::Remove(image) => pool.remove(&image, &mut |_, _| {}).await,
        }
    }
}

/// An image or snapshot at a checkpoint, with the bytes that it must have.
pub struct Checked<'a> {
    pub image: &'a str,
    pub snapshot: Option<&'a str>,
    pub bytes: &'a [u8],
    pub has_map: bool,
    /// An owner died: the object map may have objects that do not exist.
    pub was_killed: bool,
}

/// Carries out what a course says. One image at a time is open for writing.
pub trait Carrier {
    /// Opens an image, and waits until it is open.
    fn open(&mut self, image: &str) -> Result<(), String>;

    /// Closes the open image.
    fn close(&mut self) -> Result<(), String>;

    /// Sends requests to the open image, and the client dies before they are answered. Returns
    /// when no late request can be executed, unless the image's lock keeps it away anyhow.
    fn kill(&mut self, in_flight: Vec<Io>) -> Result<(), String>;

    /// Waits until the open image has this size.
    fn wait_for_size(&mut self, size: u64) -> Result<(), String>;

    /// Sends the requests at the same time, and waits for all answers.
    fn carry_out(&mut self, requests: Vec<Io>) -> Result<Vec<Payload>, String>;

    /// Another client carries out an order, while the open image goes on. The outer error: the
    /// carrier failed.
    fn manage(&mut self, order: Order) -> Result<Result<(), RbdError>, String>;

    /// All bytes of an image or a snapshot, as a reader of its own sees them.
    fn read_all(&mut self, image: &str, snapshot: Option<&str>) -> Result<Vec<u8>, String>;

    /// Checks with other means: object maps, or Ceph's own tools.
    fn check(&mut self, checked: &Checked) -> Result<(), String>;
}

/// The bytes of a read.
pub fn bytes_of(payload: &Payload) -> Result<Vec<u8>, String> {
    let Payload::Data(pieces) = payload else { return Err(format!("no data: {payload:?}")) };
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(data),
            Piece::Zeroes(len) => bytes.resize(bytes.len() + *len as usize, 0),
        }
    }
    Ok(bytes)
}

/// Fails with the place of the first difference.
pub fn same(what: &str, at: u64, found: &[u8], expected: &[u8]) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    if found.len() != expected.len() {
        return Err(format!("{what}: {} bytes instead of {}", found.len(), expected.len()));
    }
    let differs = |(a, b): (&u8, &u8)| a != b;
    let pairs = || found.iter().zip(expected);
    let first = pairs().position(differs).unwrap_or(0);
    let count = pairs().filter(|&pair| differs(pair)).count();
    Err(format!(
        "{what}: {count} bytes differ, the first at {}: {} instead of {}",
        at + first as u64,
        found[first],
        expected[first]
    ))
}
