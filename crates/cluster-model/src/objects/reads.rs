//! The operations that read, and what classes read.

use std::cmp::Ordering;

use bytes::Bytes;
use fieldstone_rados::encoding::{Encoder, EntityKind, EntityName, Time};
use fieldstone_rados::errno::Errno;

use super::execution::{Execution, MAX_ERRNO};
use super::request::Step;

/// Most keys or entries that one operation gives (Ceph: `osd_max_omap_entries_per_request`).
const MAX_OMAP_ENTRIES: u64 = 1024;
/// Most bytes of entries that one operation gives (Ceph: `osd_max_omap_bytes_per_request`).
const MAX_OMAP_BYTES: usize = 1 << 30;

type Done = Result<(i32, Bytes), Errno>;

fn encoded(fill: impl FnOnce(&mut Encoder)) -> Done {
    let mut into = Encoder::new();
    fill(&mut into);
    Ok((0, into.finish()))
}

impl Execution<'_> {
    /// Executes an operation that reads, or gives it back if it is another.
    pub(super) fn read_step(&mut self, step: Step) -> Result<Done, Step> {
        Ok(match step {
            Step::Read { offset, len } => {
                let len = if len == 0 { u64::MAX } else { len };
                Ok((0, self.bytes(offset, len)))
            }
            Step::SparseRead { offset, len } => self.sparse_read(offset, len),
            Step::Stat => self.stat().and_then(|(len, modified)| {
                encoded(|into| {
                    into.u64(len);
                    modified.encode(into);
                })
            }),
            Step::AssertVersion(version) => self.assert_version(version),
            Step::ListWatchers => self.list_watchers(),
            Step::ListSnaps => self.list_snaps(),
            Step::CompareExtent { offset, data } => self.compare_extent(offset, &data),
            Step::GetXattr(name) => self.xattr(&name).map(|value| (0, value)),
            Step::GetXattrs => encoded(|into| {
                let xattrs = self.before.map(|content| &content.xattrs);
                into.len(xattrs.map_or(0, |xattrs| xattrs.len()));
                for (name, value) in xattrs.into_iter().flatten() {
                    into.blob(name).blob(value);
                }
            }),
            Step::CompareXattr { name, comparison, as_numbers, value } => {
                self.compare_xattr(&name, comparison, as_numbers, &value)
            }
            Step::OmapKeys { after, max } => self.omap_keys(&after, max),
            Step::OmapValues { after, prefix, max } => self.omap_values(&after, &prefix, max),
            Step::OmapByKeys(keys) => encoded(|into| {
                let found: std::collections::BTreeMap<_, _> =
                    keys.iter().filter_map(|key| Some((key, self.omap_get(key).ok()?))).collect();
                into.list(found.into_iter(), |into, (key, value)| {
                    into.blob(key).blob(&value);
                });
            }),
            Step::OmapHeader => {
                Ok((0, self.before.map_or_else(Bytes::new, |content| content.omap_header.clone())))
            }
            other => return Err(other),
        })
    }

    /// The object's bytes from before the request, up to its size as the request has it now.
    pub(crate) fn bytes(&self, offset: u64, len: u64) -> Bytes {
        let len = len.min(self.len.saturating_sub(offset));
        self.before.map_or_else(Bytes::new, |content| content.data.read(offset, len))
    }

    /// Size and time of change.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(crate) fn stat(&self) -> Result<(u64, Time), Errno> {
        if !self.exists {
            return Err(Errno::ENOENT);
        }
        Ok((self.len, self.before.map_or(self.request.now, |content| content.modified)))
    }

    /// An attribute.
    ///
    /// # Errors
    /// `ENODATA`, or `ENOENT` for an absent object.
    pub(crate) fn xattr(&self, name: &[u8]) -> Result<Bytes, Errno> {
        let content = self.before.ok_or(Errno::ENOENT)?;
        content.xattrs.get(name).cloned().ok_or(Errno::ENODATA)
    }

    /// The names of the attributes.
    pub(crate) fn xattr_names(&self) -> impl Iterator<Item = &Bytes> {
        self.before.into_iter().flat_map(|content| content.xattrs.keys())
    }

    /// The value of a key.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(crate) fn omap_get(&self, key: &[u8]) -> Result<Bytes, Errno> {
        self.before.and_then(|content| content.omap.get(key).cloned()).ok_or(Errno::ENOENT)
    }

    /// The entries whose keys begin with a prefix, and come after a key.
    pub(crate) fn omap_with_prefix<'s>(
        &'s self,
        after: &'s [u8],
        prefix: &'s [u8],
    ) -> impl Iterator<Item = (&'s Bytes, &'s Bytes)> {
        self.before
            .into_iter()
            .flat_map(|content| content.omap_after(after))
            .skip_while(move |(key, _)| key.as_ref() < prefix)
            .take_while(move |(key, _)| key.starts_with(prefix))
    }

    fn sparse_read(&self, offset: u64, len: u64) -> Done {
        let end = offset.saturating_add(len).min(self.len);
        let data = self.bytes(offset, end.saturating_sub(offset));
        let extents = match self.before {
            // Erasure-coded pools give everything as one extent.
            Some(_) if self.pool.is_erasure_coded && !data.is_empty() => {
                vec![(offset, data.len() as u64)]
            }
            Some(content) => content.data.extents(offset, end.saturating_sub(offset)),
            None => Vec::new(),
        };
        encoded(|into| {
            into.list(extents.iter(), |into, &(offset, len)| {
                into.u64(offset).u64(len);
            });
            into.len(extents.iter().map(|&(_, len)| len as usize).sum());
            for (at, len) in extents {
                let start = (at - offset) as usize;
                into.bytes(&data[start..start + len as usize]);
            }
        })
    }

    fn assert_version(&self, version: u64) -> Done {
        let present = self.before.map_or(0, |content| content.user_version);
        match version.cmp(&present) {
            _ if version == 0 => Err(Errno::EINVAL),
            Ordering::Less => Err(Errno::ERANGE),
            Ordering::Greater => Err(Errno::EOVERFLOW),
            Ordering::Equal => Ok((0, Bytes::new())),
        }
    }

    fn list_watchers(&self) -> Done {
        encoded(|into| {
            into.section(1, 1, |into| {
                into.list(self.request.watchers.iter(), |into, (watcher, timeout_s, address)| {
                    into.section(2, 1, |into| {
                        client_name(watcher.client).encode(into);
                        into.u64(watcher.cookie).u32(*timeout_s);
                        address.encode(into);
                    });
                });
            });
        })
    }

    fn list_snaps(&self) -> Done {
        let Some(object) = self.object else { return Err(Errno::ENOENT) };
        encoded(|into| {
            into.section(2, 1, |into| {
                let clones = &object.snaps.clones;
                let head = object.present();
                into.len(clones.len() + usize::from(head.is_some()));
                for clone in clones {
                    // Here the snapshots are oldest first.
                    let snaps = clone.snaps.iter().rev().map(|snap| snap.0).collect::<Vec<_>>();
                    let overlap = clone.overlap.extents().collect::<Vec<_>>();
                    clone_info(into, clone.id.0, &snaps, &overlap, clone.content.data.len());
                }
                if let Some(head) = head {
                    clone_info(into, u64::MAX - 1, &[], &[], head.data.len());
                }
                into.u64(object.snaps.seq.0);
            });
        })
    }

    fn compare_extent(&self, offset: u64, data: &Bytes) -> Done {
        let present = self.bytes(offset, data.len() as u64);
        let byte = |index: usize| present.get(index).copied().unwrap_or(0);
        match data.iter().enumerate().position(|(index, &wanted)| wanted != byte(index)) {
            None => Ok((0, Bytes::new())),
            Some(index) => Err(Errno(MAX_ERRNO.saturating_add(index as i32))),
        }
    }

    fn compare_xattr(&self, name: &[u8], comparison: u8, as_numbers: bool, value: &[u8]) -> Done {
        let present = match self.xattr(name) {
            Err(Errno::ENODATA) => Bytes::new(),
            other => other?,
        };
        let order = if as_numbers {
            let mut wanted = [0; 8];
            wanted.copy_from_slice(value.get(..8).ok_or(Errno::EINVAL)?);
            // The stored value is a decimal number; an absent one counts as 0.
            let text = std::str::from_utf8(&present).map_err(|_| Errno::EINVAL)?;
            let stored = if text.is_empty() { Ok(0) } else { text.parse::<u64>() };
            u64::from_le_bytes(wanted).cmp(&stored.map_err(|_| Errno::EINVAL)?)
        } else {
            value.cmp(&present)
        };
        let holds = match comparison {
            1 => order.is_eq(),
            2 => order.is_ne(),
            3 => order.is_gt(),
            4 => order.is_ge(),
            5 => order.is_lt(),
            6 => order.is_le(),
            _ => return Err(Errno::EINVAL),
        };
        if holds { Ok((1, Bytes::new())) } else { Err(Errno::ECANCELED) }
    }

    fn omap_keys(&self, after: &[u8], max: u64) -> Done {
        let mut keys = self.before.into_iter().flat_map(|content| content.omap_after(after));
        let given: Vec<_> = keys.by_ref().take(max.min(MAX_OMAP_ENTRIES) as usize).collect();
        encoded(|into| {
            into.list(given.into_iter(), |into, (key, _)| {
                into.blob(key);
            });
            into.bool(keys.next().is_some());
        })
    }

    fn omap_values(&self, after: &[u8], prefix: &[u8], max: u64) -> Done {
        let mut entries = self.omap_with_prefix(after, prefix).peekable();
        let mut given = Vec::new();
        let mut bytes = 0;
        while let Some((key, value)) = entries.peek() {
            if given.len() as u64 >= max.min(MAX_OMAP_ENTRIES) || bytes >= MAX_OMAP_BYTES {
                break;
            }
            bytes += key.len() + value.len();
            given.push((*key, *value));
            entries.next();
        }
        encoded(|into| {
            into.list(given.iter(), |into, (key, value)| {
                into.blob(key).blob(value);
            });
            into.bool(entries.peek().is_some());
        })
    }
}

/// The name of a client.
pub(crate) fn client_name(client: u64) -> EntityName {
    EntityName { kind: EntityKind::Client, number: client as i64 }
}

fn clone_info(into: &mut Encoder, id: u64, snaps: &[u64], overlap: &[(u64, u64)], len: u64) {
    into.section(1, 1, |into| {
        into.u64(id);
        into.list(snaps.iter(), |into, &snap| {
            into.u64(snap);
        });
        into.list(overlap.iter(), |into, &(offset, len)| {
            into.u64(offset).u64(len);
        });
        into.u64(len);
    });
}
