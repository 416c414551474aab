//! `fieldstone rbd …`: images of a Ceph cluster, in the shape of Ceph's `rbd` command.
//!
//! Images are named `[POOL/[NAMESPACE/]]IMAGE[@SNAPSHOT]`; [`names`] reads that. What changes an
//! image is a procedure of the crate `fieldstone-rbd`; what moves data opens the image as a block
//! device ([`transfer`]).

mod create;
mod diff;
mod encryption;
mod export;
mod flight;
mod images;
mod import;
mod info;
mod list;
mod names;
mod objects;
mod placement;
mod snapshots;
mod transfer;
mod usage;

use std::future::Future;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Subcommand;
use fieldstone_host::ceph::Session;
use fieldstone_rados::cluster::Cluster;
use fieldstone_rbd::Timer;
use fieldstone_rbd::pool::Pool;
use fieldstone_rbd::store::Store;
use indicatif::ProgressBar;

use super::ceph::{self, CephArgs};
use names::Place;

/// Options of `rbd`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    ceph: CephArgs,
    #[command(subcommand)]
    command: Command,
}

/// Work with images.
#[derive(Subcommand, Debug)]
enum Command {
    /// List the images of a pool.
    #[command(visible_alias = "list")]
    Ls(list::Args),
    /// Show the size, layout and features of an image.
    Info(info::InfoArgs),
    /// Show who has an image open.
    Status(info::StatusArgs),
    /// Show how much space images use.
    #[command(visible_alias = "disk-usage")]
    Du(usage::Args),
    /// Make an empty image.
    Create(create::Args),
    /// Make a clone of a snapshot.
    Clone(create::CloneArgs),
    /// Remove an image with all its data.
    #[command(visible_alias = "remove")]
    Rm(images::RmArgs),
    /// Give an image another name.
    #[command(visible_aliases = ["mv"])]
    Rename(images::RenameArgs),
    /// Set the size of an image.
    Resize(images::ResizeArgs),
    /// Copy the data of the parent into a clone, and detach the clone from its parent.
    Flatten(images::FlattenArgs),
    /// Make, list, protect and remove snapshots.
    #[command(subcommand)]
    Snap(snapshots::Command),
    /// Write an image or a snapshot to a file.
    Export(export::Args),
    /// Make an image from a file.
    Import(import::Args),
    /// Write what changed since a snapshot to a file, in the format of `rbd import-diff`.
    ExportDiff(diff::Args),
    /// Make encrypted images.
    #[command(subcommand)]
    Encryption(encryption::Command),
    /// Show the placement group and the OSDs of each object of an image.
    MapTable(placement::Args),
}

/// Runs `rbd …`.
///
/// # Errors
/// The error says what happened, to which image, and what to do.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let ceph = &args.ceph;
    match &args.command {
        Command::Ls(args) => list::run(ceph, args),
        Command::Info(args) => info::info(ceph, args),
        Command::Status(args) => info::status(ceph, args),
        Command::Du(args) => usage::run(ceph, args),
        Command::Create(args) => create::create(ceph, args),
        Command::Clone(args) => create::clone(ceph, args),
        Command::Rm(args) => images::remove(ceph, args),
        Command::Rename(args) => images::rename(ceph, args),
        Command::Resize(args) => images::resize(ceph, args),
        Command::Flatten(args) => images::flatten(ceph, args),
        Command::Snap(command) => snapshots::run(ceph, command),
        Command::Export(args) => export::run(ceph, args),
        Command::Import(args) => import::run(ceph, args),
        Command::ExportDiff(args) => diff::run(ceph, args),
        Command::Encryption(command) => encryption::run(ceph, command),
        Command::MapTable(args) => placement::run(ceph, args),
    }
}

/// What procedures on images need of a session.
#[derive(Clone)]
struct Context {
    cluster: Cluster,
    timer: Timer,
}

impl Context {
    fn of(session: &Session) -> Self {
        Self { cluster: session.cluster(), timer: session.timer() }
    }

    async fn pool(&self, place: &Place) -> anyhow::Result<Pool> {
        let (cluster, timer) = (self.cluster.clone(), self.timer.clone());
        let pool = Pool::open(cluster, timer, &place.pool, &place.namespace, seed()).await?;
        Ok(pool)
    }

    /// The objects of a place: headers and object maps.
    fn store(&self, pool: &Pool, place: &Place) -> Store {
        Store::new(&self.cluster, pool.pool().id, &place.namespace)
    }
}

/// Makes the ids of new images differ: the time of day, in nanoseconds, and the process.
fn seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 ^ u64::from(std::process::id()) << 32
}

/// Connects, runs one procedure, and ends the session.
fn with_context<T: 'static, F>(
    ceph: &CephArgs,
    procedure: impl FnOnce(Context) -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>> + 'static,
{
    let mut session = ceph.connect()?;
    let work = procedure(Context::of(&session));
    let result = ceph::run(&mut session, work);
    session.close();
    result
}

/// Connects, runs one procedure on a pool, and ends the session.
fn with_pool<T: 'static, F>(
    ceph: &CephArgs,
    place: &Place,
    procedure: impl FnOnce(Context, Pool) -> F + 'static,
) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let place = place.clone();
    with_context(ceph, |context| async move {
        let pool = context.pool(&place).await?;
        procedure(context, pool).await
    })
}

/// Shows the progress of a procedure on objects.
fn show_on(bar: &ProgressBar) -> impl FnMut(u64, u64) + use<> {
    let bar = bar.clone();
    move |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    }
}
