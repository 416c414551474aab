//! `rbd snap …`.

use fieldstone_bench::table::Table;
use fieldstone_rbd::format::class::{Protection, SnapshotKind};
use fieldstone_rbd::header::Snapshot;
use fieldstone_units as units;

use super::super::ceph::CephArgs;
use super::info::{protection_word, utc};
use super::names::PlaceArgs;
use super::{show_on, with_pool};
use crate::progress::counting_bar;

/// Work with snapshots.
#[derive(clap::Subcommand, Debug)]
pub(super) enum Command {
    /// List the snapshots of an image.
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Make a snapshot.
    #[command(visible_alias = "add")]
    Create(SnapshotArgs),
    /// Remove a snapshot.
    #[command(visible_alias = "remove")]
    Rm(SnapshotArgs),
    /// Protect a snapshot: it cannot be removed.
    Protect(SnapshotArgs),
    /// Lift the protection of a snapshot.
    Unprotect(SnapshotArgs),
    /// Give an image the content of a snapshot. What was written since is lost.
    #[command(visible_alias = "revert")]
    Rollback(SnapshotArgs),
}

/// Options of commands on a snapshot.
#[derive(clap::Args, Debug)]
pub(super) struct SnapshotArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// The snapshot, as [POOL/[NAMESPACE/]]IMAGE@SNAPSHOT.
    snapshot: String,
}

/// Options of `rbd snap ls`.
#[derive(clap::Args, Debug)]
pub(super) struct ListArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// The image, as [POOL/[NAMESPACE/]]IMAGE.
    image: String,
    /// List the snapshots too that no user has made, such as those in the trash.
    #[arg(long, short)]
    all: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(ceph: &CephArgs, command: &Command) -> anyhow::Result<()> {
    let (Command::Create(args)
    | Command::Rm(args)
    | Command::Protect(args)
    | Command::Unprotect(args)
    | Command::Rollback(args)) = command
    else {
        let Command::Ls(args) = command else { return Ok(()) };
        return list(ceph, args);
    };
    let (name, snapshot) = args.place.snapshot(&args.snapshot)?;
    let place = name.place.clone();
    match command {
        Command::Create(_) => with_pool(ceph, &place, |_, pool| async move {
            pool.create_snapshot(&name.image, &snapshot).await?;
            Ok(())
        }),
        Command::Rm(_) => with_pool(ceph, &place, |_, pool| async move {
            Ok(pool.remove_snapshot(&name.image, &snapshot).await?)
        }),
        Command::Protect(_) => with_pool(ceph, &place, |_, pool| async move {
            Ok(pool.protect_snapshot(&name.image, &snapshot).await?)
        }),
        Command::Unprotect(_) => with_pool(ceph, &place, |_, pool| async move {
            Ok(pool.unprotect_snapshot(&name.image, &snapshot).await?)
        }),
        Command::Rollback(_) => with_pool(ceph, &place, |_, pool| async move {
            let bar = counting_bar("rollback", "objects", 0);
            let progress = &mut show_on(&bar);
            let done = pool.rollback_snapshot(&name.image, &snapshot, progress).await;
            bar.finish_and_clear();
            Ok(done?)
        }),
        Command::Ls(_) => Ok(()),
    }
}

fn list(ceph: &CephArgs, args: &ListArgs) -> anyhow::Result<()> {
    let name = args.place.image(&args.image)?;
    let place = name.place.clone();
    let mut snapshots =
        with_pool(ceph, &place, |_, pool| async move { Ok(pool.snapshots(&name.image).await?) })?;
    if !args.all {
        snapshots.retain(|snapshot| snapshot.info.kind == SnapshotKind::User);
    }
    if args.json {
        let list: Vec<_> = snapshots.iter().map(snapshot_json).collect();
        print_line!("{}", serde_json::json!(list));
        return Ok(());
    }
    if snapshots.is_empty() {
        return Ok(());
    }
    let mut heading = vec!["SNAPID", "NAME", "SIZE", "PROTECTED", "TIMESTAMP", "CLONES"];
    if args.all {
        heading.push("NAMESPACE");
    }
    let mut table = Table::new(&heading);
    for snapshot in &snapshots {
        let info = &snapshot.info;
        let mut cells = vec![
            info.id.0.to_string(),
            info.name.clone(),
            units::size(info.size_bytes),
            protection_word(snapshot.protection).to_owned(),
            utc(info.created),
            info.children.to_string(),
        ];
        if args.all {
            cells.push(kind_word(&info.kind));
        }
        table.row(cells);
    }
    print_text!("{}", table.text());
    Ok(())
}

fn snapshot_json(snapshot: &Snapshot) -> serde_json::Value {
    let info = &snapshot.info;
    serde_json::json!({
        "id": info.id.0,
        "name": info.name,
        "size": info.size_bytes,
        "protected": snapshot.protection != Protection::Unprotected,
        "timestamp": utc(info.created),
        "clones": info.children,
        "namespace": kind_word(&info.kind),
    })
}

fn kind_word(kind: &SnapshotKind) -> String {
    match kind {
        SnapshotKind::User => "user".to_owned(),
        SnapshotKind::Group => "group".to_owned(),
        SnapshotKind::Trash(name) => format!("trash ({name})"),
        SnapshotKind::Mirror => "mirror".to_owned(),
        SnapshotKind::Other(number) => format!("kind {number}"),
    }
}
