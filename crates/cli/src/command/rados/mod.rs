//! `fieldstone rados …`: objects of a Ceph cluster, in the shape of Ceph's `rados` command.

mod attributes;
mod data;
mod list;
mod null_cluster;
mod watch;

use std::rc::Rc;

use clap::Subcommand;
use fieldstone_rados::cluster::{Cluster, ObjectName, Operation};
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::{ObjectOps, Reply};

use super::ceph::{CephArgs, pool_named};

/// Options of `rados`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    ceph: CephArgs,
    #[command(subcommand)]
    command: Command,
}

/// Work with objects.
#[derive(Subcommand, Debug)]
enum Command {
    /// List the pools.
    Lspools(list::PoolsArgs),
    /// List the objects of a pool.
    Ls(list::Args),
    /// Write an object to a file.
    Get(data::GetArgs),
    /// Write a file to an object.
    Put(data::PutArgs),
    /// Append a file to an object.
    Append(data::PutArgs),
    /// Make an empty object.
    Create(data::CreateArgs),
    /// Cut or extend an object.
    Truncate(data::TruncateArgs),
    /// Show the size of an object and the time of its last change.
    Stat(data::StatArgs),
    /// Remove objects.
    Rm(data::RmArgs),
    /// List the extended attributes of an object.
    Listxattr(attributes::ObjectArgs),
    /// Write an extended attribute to stdout.
    Getxattr(attributes::KeyArgs),
    /// Set an extended attribute.
    Setxattr(attributes::ValueArgs),
    /// Remove an extended attribute.
    Rmxattr(attributes::KeyArgs),
    /// List the keys of an object's map.
    Listomapkeys(attributes::ObjectArgs),
    /// List the keys and values of an object's map.
    Listomapvals(attributes::ObjectArgs),
    /// Write a value of an object's map to stdout.
    Getomapval(attributes::KeyArgs),
    /// Set a value of an object's map.
    Setomapval(attributes::ValueArgs),
    /// Remove a key of an object's map.
    Rmomapkey(attributes::KeyArgs),
    /// Show notifications of an object, and acknowledge them.
    Watch(watch::WatchArgs),
    /// Notify the watchers of an object.
    Notify(watch::NotifyArgs),
    /// List the watchers of an object.
    Listwatchers(attributes::ObjectArgs),
    /// Run a cluster in memory, to measure and to test clients.
    NullCluster(null_cluster::Args),
}

/// The pool and namespace of objects.
#[derive(clap::Args, Debug, Clone)]
struct PoolArgs {
    /// The pool.
    #[arg(long, short, value_name = "POOL")]
    pool: String,
    /// The namespace in the pool.
    #[arg(long, short = 'N', value_name = "NAME", default_value = "")]
    namespace: String,
}

/// Runs `rados …`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let ceph = &args.ceph;
    match &args.command {
        Command::Lspools(args) => list::pools(ceph, args),
        Command::Ls(args) => list::run(ceph, args),
        Command::Get(args) => data::get(ceph, args),
        Command::Put(args) => data::put(ceph, args),
        Command::Append(args) => data::append(ceph, args),
        Command::Create(args) => data::create(ceph, args),
        Command::Truncate(args) => data::truncate(ceph, args),
        Command::Stat(args) => data::stat(ceph, args),
        Command::Rm(args) => data::remove(ceph, args),
        Command::Listxattr(args) => attributes::list_xattrs(ceph, args),
        Command::Getxattr(args) => attributes::get_xattr(ceph, args),
        Command::Setxattr(args) => attributes::set_xattr(ceph, args),
        Command::Rmxattr(args) => attributes::remove_xattr(ceph, args),
        Command::Listomapkeys(args) => attributes::list_keys(ceph, args),
        Command::Listomapvals(args) => attributes::list_values(ceph, args),
        Command::Getomapval(args) => attributes::get_value(ceph, args),
        Command::Setomapval(args) => attributes::set_value(ceph, args),
        Command::Rmomapkey(args) => attributes::remove_key(ceph, args),
        Command::Watch(args) => watch::watch(ceph, args),
        Command::Notify(args) => watch::notify(ceph, args),
        Command::Listwatchers(args) => attributes::list_watchers(ceph, args),
        Command::NullCluster(args) => null_cluster::run(args),
    }
}

/// The objects of one namespace of a pool.
struct Objects {
    cluster: Cluster,
    pool: fieldstone_rados::cluster::PoolInfo,
    namespace: String,
}

/// One object, with its name for errors.
#[derive(Clone)]
struct Object {
    objects: Rc<Objects>,
    name: ObjectName,
}

impl Objects {
    async fn open(cluster: Cluster, args: &PoolArgs) -> anyhow::Result<Rc<Self>> {
        let pool = pool_named(&cluster, &args.pool).await?;
        Ok(Rc::new(Self { cluster, pool, namespace: args.namespace.clone() }))
    }
}

impl Object {
    async fn open(cluster: Cluster, args: &PoolArgs, name: &str) -> anyhow::Result<Self> {
        Ok(Self::of(&Objects::open(cluster, args).await?, name))
    }

    fn of(objects: &Rc<Objects>, name: &str) -> Self {
        let full = ObjectName::new(objects.pool.id, &objects.namespace, name);
        Self { objects: Rc::clone(objects), name: full }
    }

    /// Executes operations on the object. The error has no name; [`Object::named`] gives it one.
    async fn raw(&self, ops: ObjectOps) -> Result<Reply, Errno> {
        let mut operation = Operation::new(self.name.clone(), ops);
        // A command shall say that the pool is full, not wait until there is space.
        operation.flags.full_try = true;
        self.objects.cluster.operate(operation).await
    }

    /// Executes operations on the object.
    async fn operate(&self, ops: ObjectOps) -> anyhow::Result<Reply> {
        self.raw(ops).await.map_err(|errno| self.named(errno))
    }

    fn named(&self, errno: Errno) -> anyhow::Error {
        anyhow::anyhow!("{}/{}: {errno}", self.objects.pool.name, self.name.name)
    }
}
