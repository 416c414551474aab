//! Lists the volumes of a pool.
//!
//! There is no catalogue. Every node keeps the root record of each volume, and the newest root is
//! valid. A node that does not answer, or whose root cannot be read, hides no volume that other
//! nodes know.

use std::collections::BTreeMap;
use std::fmt::Display;

use anyhow::{Context, bail};
use fieldstone_codes::Profile;
use fieldstone_proto::{Epoch, NodeIndex, ReplyBody, RequestBody, VolumeId, VolumeSummary};
use fieldstone_volume::{Geometry, RootSummary, parse_root};

use super::RunningPool;
use crate::admission::Registry;
use crate::report::VolumeReport;
use fieldstone_units as units;

/// A volume that the nodes know.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its id.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Its code.
    pub profile: Profile,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The sizes of its parts.
    pub geometry: Geometry,
    /// The epoch of its writer.
    pub epoch: Epoch,
    /// Number of nodes that know the volume and sent a readable root.
    pub nodes: usize,
}

/// The answers of the nodes to the question for their volumes.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The volumes, sorted by name.
    pub volumes: Vec<Known>,
    /// Nodes that did not answer, each with the reason.
    pub silent: Vec<(NodeIndex, String)>,
    /// Nodes with a record or root that cannot be used, or that did not send a root. Each with the
    /// reason.
    pub damaged: Vec<(NodeIndex, String)>,
    /// Volumes that exist, but of which no node sent a readable root.
    pub hidden: BTreeMap<VolumeId, Hidden>,
    /// Volumes that nodes know, but of which no node has a root: their creation was not completed.
    pub without_root: BTreeMap<VolumeId, Epoch>,
    /// Volumes that were removed, and that a client with a valid capability has made again. They
    /// are in no other list.
    pub removed: BTreeMap<VolumeId, Epoch>,
}

/// A volume of which no root could be read.
#[derive(Clone, Debug)]
pub struct Hidden {
    /// The reason that the first node gave.
    pub why: String,
    /// Its name, if that is not in its root only: clients had it.
    pub name: Option<String>,
    /// The highest epoch that a node told.
    pub epoch: Epoch,
    /// Nodes that know the volume and sent no root that this release can read.
    pub nodes: usize,
}

/// The newest root of a volume so far.
struct Newest {
    root: RootSummary,
    profile: Profile,
    epoch: Epoch,
    nodes: usize,
}

impl Listing {
    /// The volume of this name.
    pub fn find(&self, name: &str) -> Option<&Known> {
        self.volumes.iter().find(|known| known.name == name)
    }

    /// True if every node has answered, and all records and roots can be read. Then no volume is
    /// missing.
    pub fn is_complete(&self) -> bool {
        self.silent.is_empty() && self.damaged.is_empty()
    }

    /// Whether a report is of the writer that the nodes know.
    pub fn is_of_writer(&self, report: &VolumeReport) -> bool {
        let mut volumes = self.volumes.iter();
        let known = volumes.find(|known| known.id.to_string() == report.id);
        known.is_some_and(|known| known.epoch.0 == report.epoch)
    }

    /// The hidden volume of this name.
    pub fn find_hidden(&self, name: &str) -> Option<(VolumeId, &Hidden)> {
        let mut hidden = self.hidden.iter();
        hidden.find(|(_, hidden)| hidden.name.as_deref() == Some(name)).map(|(id, h)| (*id, h))
    }

    /// Checks that no volume is there that may have any name. A client can make its own volume
    /// unreadable, but not its name unknown.
    ///
    /// # Errors
    /// There is one.
    pub fn check_names_known(&self) -> anyhow::Result<()> {
        match self.hidden.iter().find(|(_, hidden)| hidden.name.is_none()) {
            None => Ok(()),
            Some((id, Hidden { why, .. })) => {
                bail!(
                    "a volume of the pool cannot be listed, and its name is not known; {id}: {why}"
                )
            }
        }
    }

    /// Checks that no volume is hidden.
    ///
    /// # Errors
    /// Volumes are hidden: their number, and the reason for the first one.
    pub fn check_none_hidden(&self) -> anyhow::Result<()> {
        match self.hidden.iter().next() {
            None => Ok(()),
            Some((id, Hidden { why, .. })) => {
                bail!("{} of the pool's volumes cannot be listed; {id}: {why}", self.hidden.len())
            }
        }
    }

    /// The nodes that may hide volumes, each on its own line, to append to an error.
    fn troubles(&self) -> String {
        let silent =
            self.silent.iter().map(|(node, why)| format!("\n  {node} does not answer: {why}"));
        let damaged = self.damaged.iter().map(|(node, why)| format!("\n  {node}: {why}"));
        silent.chain(damaged).collect()
    }

    /// Adds the answer of a node about a volume.
    fn add(
        &mut self,
        newest: &mut BTreeMap<VolumeId, Newest>,
        node: NodeIndex,
        summary: &VolumeSummary,
    ) {
        let id = summary.volume;
        if summary.root_version == 0 {
            let epoch = self.without_root.entry(id).or_default();
            *epoch = summary.epoch.max(*epoch);
            return;
        }
        let (root, profile) = match read(summary) {
            Ok(read) => read,
            Err(why) => {
                self.damaged.push((node, format!("volume {id}: {why}")));
                let hidden = Hidden { why, name: None, epoch: Epoch(0), nodes: 0 };
                let hidden = self.hidden.entry(id).or_insert(hidden);
                hidden.nodes += 1;
                hidden.epoch = hidden.epoch.max(summary.epoch);
                return;
            }
        };
        let (epoch, version) = (summary.epoch, (root.epoch, root.version));
        match newest.get_mut(&id) {
            None => {
                newest.insert(id, Newest { root, profile, epoch, nodes: 1 });
            }
            Some(known) => {
                known.nodes += 1;
                known.epoch = known.epoch.max(epoch);
                if version > (known.root.epoch, known.root.version) {
                    (known.root, known.profile) = (root, profile);
                }
            }
        }
    }
}

fn read(summary: &VolumeSummary) -> Result<(RootSummary, Profile), String> {
    if !summary.is_usable() {
        let why = "its record is damaged or of a later release: the log of the node tells more";
        return Err(why.to_owned());
    }
    if summary.root.is_empty() {
        let why = "its root is left out, for there are more volumes than a node can list";
        return Err(why.to_owned());
    }
    let unreadable = |error: &dyn Display| {
        format!("its root is unreadable: {error}; a release that can read it can list it")
    };
    let root = parse_root(&summary.root).map_err(|error| unreadable(&error))?;
    let profile =
        root.profile.parse().map_err(|error| unreadable(&format!("its code: {error}")))?;
    Ok((root, profile))
}

impl RunningPool {
    /// Asks every node for its volumes.
    ///
    /// # Errors
    /// No node answers.
    pub fn list_volumes(&self) -> anyhow::Result<Listing> {
        let answers = self.ask_nodes(|node, session| {
            let capability = self.capability(VolumeId(0), Epoch(0));
            match session.ask(capability, &RequestBody::ListVolumes)? {
                ReplyBody::Volumes(volumes) => Ok(volumes),
                other => bail!("{node} answered out of turn: {other:?}"),
            }
        });
        let answer = |(node, answer): (NodeIndex, anyhow::Result<Vec<VolumeSummary>>)| {
            (node, answer.map_err(|error| format!("{error:#}")))
        };
        self.listing(answers.into_iter().map(answer))
    }

    /// The volumes, from the answers of all nodes.
    ///
    /// # Errors
    /// No node has answered.
    pub(super) fn listing(
        &self,
        answers: impl Iterator<Item = (NodeIndex, Result<Vec<VolumeSummary>, String>)>,
    ) -> anyhow::Result<Listing> {
        let pool = &self.pool;
        // A client that may write a volume writes its root. The name in there counts for nothing.
        let registry = Registry::read(&pool.folder, pool.id).unwrap_or_else(|error| {
            tracing::warn!("the names of volumes that clients write are not known: {error:#}");
            Registry::empty(pool.id)
        });
        let mut newest = BTreeMap::new();
        let mut listing = Listing::default();
        for (node, answer) in answers {
            match answer {
                Ok(volumes) => {
                    for summary in &volumes {
                        let is_there = summary.root_version != 0;
                        if is_there && registry.is_removed(summary.volume) {
                            let epoch = listing.removed.entry(summary.volume).or_default();
                            *epoch = summary.epoch.max(*epoch);
                        } else {
                            listing.add(&mut newest, node, summary);
                        }
                    }
                }
                Err(reason) => listing.silent.push((node, reason)),
            }
        }
        if listing.silent.len() == usize::from(pool.nodes) {
            bail!("no node of {} answers{}", pool.folder.display(), listing.troubles());
        }
        // A node that was down while a volume was removed may still know the volume. An existing
        // volume has its root on all nodes except the m that may be lost. So a volume that fewer
        // nodes know was removed.
        let away = listing.silent.len() + pool.profile.m();
        listing.hidden.retain(|id, hidden| {
            !newest.contains_key(id) && hidden.nodes + away >= usize::from(pool.nodes)
        });
        let without = |id: &VolumeId| !newest.contains_key(id) && !listing.hidden.contains_key(id);
        listing.without_root.retain(|id, _| without(id));
        for (id, hidden) in &mut listing.hidden {
            hidden.name = registry.name_of(*id).map(str::to_owned);
        }
        let known = |(id, newest): (VolumeId, Newest)| Known {
            id,
            name: registry.name_of(id).map_or(newest.root.name, str::to_owned),
            profile: newest.profile,
            size_bytes: newest.root.geometry.size_bytes,
            geometry: newest.root.geometry,
            epoch: newest.epoch,
            nodes: newest.nodes,
        };
        listing.volumes = newest.into_iter().map(known).collect();
        listing.volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listing)
    }

    /// The volume of this name.
    ///
    /// # Errors
    /// There is no volume of this name, or no node answers.
    pub fn find_volume(&self, name: &str) -> anyhow::Result<Known> {
        self.find_in(&self.list_volumes()?, name)
    }

    /// The volume of this name in a listing of this pool.
    ///
    /// # Errors
    /// There is no volume of this name.
    pub fn find_in(&self, listing: &Listing, name: &str) -> anyhow::Result<Known> {
        let mut named = listing.volumes.iter().filter(|known| known.name == name);
        if let (Some(one), Some(other)) = (named.next(), named.next()) {
            let dir = self.folder();
            bail!(
                "the pool {} has two volumes {name:?}: {} and {}",
                dir.display(),
                one.id,
                other.id
            );
        }
        listing.find(name).cloned().with_context(|| {
            let dir = self.folder();
            let dir = dir.display();
            let names: Vec<_> = listing.volumes.iter().map(|known| known.name.as_str()).collect();
            let there = if let Some((id, hidden)) = listing.find_hidden(name) {
                format!("it is {id}, and cannot be read: {}", hidden.why)
            } else if !listing.hidden.is_empty() {
                "some volumes cannot be listed".to_owned()
            } else if names.is_empty() {
                let volume = units::shell_word(format_args!("{dir}/{name}"));
                format!("make it with `fieldstone volume create {volume} --size 1G`")
            } else {
                format!("there are: {}", names.join(", "))
            };
            format!("the pool {dir} has no volume {name:?}; {there}{}", listing.troubles())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_that_cannot_be_read_is_told_and_no_error() {
        let summary = |root_version, root: &'static [u8]| VolumeSummary {
            volume: VolumeId(7),
            epoch: Epoch(1),
            root_version,
            root: root.into(),
        };
        let (mut listing, mut newest) = (Listing::default(), BTreeMap::new());
        listing.add(&mut newest, NodeIndex(2), &summary(3, b"FSROOT, but not one"));
        listing.add(&mut newest, NodeIndex(3), &summary(0, b""));
        assert!(newest.is_empty());
        assert_eq!(listing.without_root.get(&VolumeId(7)), Some(&Epoch(1)));
        let (node, why) = listing.damaged.first().expect("told");
        assert_eq!((listing.damaged.len(), *node), (1, NodeIndex(2)));
        assert!(why.contains("unreadable") && listing.troubles().contains("node.2"), "{why}");
    }

    /// A node with a damaged record, or a record of a later release, still says that the volume
    /// exists.
    #[test]
    fn a_record_that_cannot_be_used_is_not_taken_for_none() {
        let (mut listing, mut newest) = (Listing::default(), BTreeMap::new());
        let (volume, epoch, root) = (VolumeId(7), Epoch(0), bytes::Bytes::new());
        let root_version = VolumeSummary::UNUSABLE;
        let summary = VolumeSummary { volume, epoch, root_version, root };
        listing.add(&mut newest, NodeIndex(2), &summary);
        listing.add(&mut newest, NodeIndex(4), &summary);
        assert_eq!(listing.hidden.get(&VolumeId(7)).map(|hidden| hidden.nodes), Some(2));
        let error = listing.check_none_hidden().expect_err("it is there").to_string();
        assert!(error.contains("its record is damaged or of a later release"), "{error}");
    }

    /// A client can write nonsense into the root of its volume. The pool goes on.
    #[test]
    fn a_volume_of_a_known_name_hides_no_other() {
        let hidden = |name: Option<&str>| Hidden {
            why: "nonsense".to_owned(),
            name: name.map(str::to_owned),
            epoch: Epoch(4),
            nodes: 3,
        };
        let mut listing = Listing::default();
        listing.hidden.insert(VolumeId(7), hidden(Some("disk")));
        listing.check_names_known().expect("the name is known");
        listing.check_none_hidden().expect_err("it cannot be listed");
        assert_eq!(
            listing.find_hidden("disk").map(|(id, found)| (id, found.nodes)),
            Some((VolumeId(7), 3))
        );
        assert!(listing.find_hidden("other").is_none());
        listing.hidden.insert(VolumeId(8), hidden(None));
        let error = listing.check_names_known().expect_err("it may have any name").to_string();
        assert!(error.contains("its name is not known"), "{error}");
    }

    /// A volume with a root is no remainder of a creation, even if the node does not send the root.
    #[test]
    fn a_root_that_is_left_out_is_not_taken_for_none() {
        let (mut listing, mut newest) = (Listing::default(), BTreeMap::new());
        let (volume, epoch, root) = (VolumeId(7), Epoch(1), bytes::Bytes::new());
        let summary = VolumeSummary { volume, epoch, root_version: 3, root };
        listing.add(&mut newest, NodeIndex(2), &summary);
        assert!(listing.without_root.is_empty() && !listing.is_complete());
        let error = listing.check_none_hidden().expect_err("it is there").to_string();
        assert!(error.contains("1 of the pool's volumes cannot be listed"), "{error}");
    }
}
