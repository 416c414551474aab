//! The commands of `rados` that work on the data of objects.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use bytes::Bytes;
use fieldstone_rados::op::ObjectOps;
use fieldstone_rados::op::results::Stat;

use super::super::ceph::CephArgs;
use super::{Object, Objects, PoolArgs};
use crate::progress::byte_bar;
use fieldstone_units as units;

/// The bytes of one request. Pools of erasure codes without overwrites need a multiple of their
/// stripe, which every usual stripe divides.
const CHUNK_BYTES: usize = 4 << 20;

/// Options of `rados get`.
#[derive(clap::Args, Debug)]
pub(super) struct GetArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// The object.
    object: String,
    /// The file to write; - for stdout.
    file: PathBuf,
}

/// Options of `rados put` and `rados append`.
#[derive(clap::Args, Debug)]
pub(super) struct PutArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// The object.
    object: String,
    /// The file to read; - for stdin.
    file: PathBuf,
}

/// Options of `rados create`.
#[derive(clap::Args, Debug)]
pub(super) struct CreateArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// The object.
    object: String,
}

/// Options of `rados truncate`.
#[derive(clap::Args, Debug)]
pub(super) struct TruncateArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// The object.
    object: String,
    /// The new size.
    #[arg(value_parser = units::parse_size)]
    size: u64,
}

/// Options of `rados stat`.
#[derive(clap::Args, Debug)]
pub(super) struct StatArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// The object.
    object: String,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Options of `rados rm`.
#[derive(clap::Args, Debug)]
pub(super) struct RmArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// The objects.
    #[arg(required = true)]
    objects: Vec<String>,
}

/// The size of an object, and its last change.
async fn stat_of(object: &Object) -> anyhow::Result<Stat> {
    let mut ops = ObjectOps::new();
    ops.stat();
    let reply = object.operate(ops).await?;
    let data = reply.ops.first().map(|op| op.data.clone()).unwrap_or_default();
    Stat::decode(&data).with_context(|| format!("the stat of {}", object.name.name))
}

pub(super) fn get(ceph: &CephArgs, args: &GetArgs) -> anyhow::Result<()> {
    let (pool, name, path) = (args.pool.clone(), args.object.clone(), args.file.clone());
    ceph.with_cluster(|cluster| async move {
        let object = Object::open(cluster, &pool, &name).await?;
        let size_bytes = stat_of(&object).await?.size_bytes;
        let mut out: Box<dyn Write> = match path == Path::new("-") {
            true => Box::new(io::stdout().lock()),
            false => Box::new(File::create(&path).with_context(|| path.display().to_string())?),
        };
        let bar = byte_bar("get", size_bytes);
        let mut offset_bytes = 0;
        loop {
            let mut ops = ObjectOps::new();
            ops.read(offset_bytes, CHUNK_BYTES as u64);
            let reply = object.operate(ops).await?;
            let data = reply.ops.first().map(|op| op.data.clone()).unwrap_or_default();
            out.write_all(&data).with_context(|| path.display().to_string())?;
            offset_bytes += data.len() as u64;
            bar.set_position(offset_bytes);
            if data.len() < CHUNK_BYTES {
                break;
            }
        }
        out.flush().with_context(|| path.display().to_string())?;
        bar.finish_and_clear();
        Ok(())
    })
}

/// A file in pieces of [`CHUNK_BYTES`]; only the last one is shorter.
struct Chunks {
    source: Box<dyn Read>,
    path: PathBuf,
    len_bytes: u64,
}

impl Chunks {
    fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self { source: Box::new(io::stdin()), path: path.into(), len_bytes: 0 });
        }
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let len_bytes = file.metadata().with_context(|| path.display().to_string())?.len();
        Ok(Self { source: Box::new(file), path: path.into(), len_bytes })
    }

    fn next(&mut self) -> anyhow::Result<Bytes> {
        let mut chunk = Vec::new();
        let mut limited = (&mut self.source).take(CHUNK_BYTES as u64);
        limited.read_to_end(&mut chunk).with_context(|| self.path.display().to_string())?;
        Ok(chunk.into())
    }
}

pub(super) fn put(ceph: &CephArgs, args: &PutArgs) -> anyhow::Result<()> {
    let (pool, name) = (args.pool.clone(), args.object.clone());
    let mut chunks = Chunks::open(&args.file)?;
    ceph.with_cluster(|cluster| async move {
        let object = Object::open(cluster, &pool, &name).await?;
        let bar = byte_bar("put", chunks.len_bytes);
        let mut offset_bytes = 0;
        loop {
            let chunk = chunks.next()?;
            if chunk.is_empty() && offset_bytes > 0 {
                break;
            }
            let len = chunk.len();
            let mut ops = ObjectOps::new();
            if offset_bytes == 0 {
                ops.write_full(chunk);
            } else {
                ops.write(offset_bytes, chunk);
            }
            object.operate(ops).await?;
            offset_bytes += len as u64;
            bar.set_position(offset_bytes);
            if len < CHUNK_BYTES {
                break;
            }
        }
        bar.finish_and_clear();
        Ok(())
    })
}

pub(super) fn append(ceph: &CephArgs, args: &PutArgs) -> anyhow::Result<()> {
    let (pool, name) = (args.pool.clone(), args.object.clone());
    let mut chunks = Chunks::open(&args.file)?;
    ceph.with_cluster(|cluster| async move {
        let object = Object::open(cluster, &pool, &name).await?;
        let bar = byte_bar("append", chunks.len_bytes);
        loop {
            let chunk = chunks.next()?;
            let len = chunk.len();
            if len > 0 {
                let mut ops = ObjectOps::new();
                ops.append(chunk);
                object.operate(ops).await?;
                bar.inc(len as u64);
            }
            if len < CHUNK_BYTES {
                break;
            }
        }
        bar.finish_and_clear();
        Ok(())
    })
}

pub(super) fn create(ceph: &CephArgs, args: &CreateArgs) -> anyhow::Result<()> {
    let (pool, name) = (args.pool.clone(), args.object.clone());
    ceph.with_cluster(|cluster| async move {
        let object = Object::open(cluster, &pool, &name).await?;
        let mut ops = ObjectOps::new();
        ops.create(true);
        object.operate(ops).await.map(drop)
    })
}

pub(super) fn truncate(ceph: &CephArgs, args: &TruncateArgs) -> anyhow::Result<()> {
    let (pool, name, size) = (args.pool.clone(), args.object.clone(), args.size);
    ceph.with_cluster(|cluster| async move {
        let object = Object::open(cluster, &pool, &name).await?;
        let mut ops = ObjectOps::new();
        ops.truncate(size);
        object.operate(ops).await.map(drop)
    })
}

pub(super) fn stat(ceph: &CephArgs, args: &StatArgs) -> anyhow::Result<()> {
    let (pool, name) = (args.pool.clone(), args.object.clone());
    let found = ceph.with_cluster(|cluster| async move {
        let object = Object::open(cluster, &pool, &name).await?;
        stat_of(&object).await
    })?;
    let Stat { size_bytes, modified } = found;
    if args.json {
        let line = serde_json::json!({
            "pool": args.pool.pool,
            "object": args.object,
            "size_bytes": size_bytes,
            "modified_unix_seconds": modified.seconds,
            "modified_nanos": modified.nanos,
        });
        print_line!("{line}");
        return Ok(());
    }
    print_line!(
        "{}/{} modified {}.{:09} (unix time), {size_bytes} bytes",
        args.pool.pool,
        args.object,
        modified.seconds,
        modified.nanos
    );
    Ok(())
}

pub(super) fn remove(ceph: &CephArgs, args: &RmArgs) -> anyhow::Result<()> {
    let (pool, names) = (args.pool.clone(), args.objects.clone());
    let failed = ceph.with_cluster(|cluster| async move {
        let objects = Objects::open(cluster, &pool).await?;
        let removals: Vec<_> = names
            .iter()
            .map(|name| {
                let object = Object::of(&objects, name);
                async move {
                    let mut ops = ObjectOps::new();
                    ops.delete();
                    object.operate(ops).await
                }
            })
            .collect();
        let mut failed = 0;
        for result in fieldstone_tasks::all(removals).await {
            if let Err(error) = result {
                eprint_line!("fieldstone: {error:#}");
                failed += 1;
            }
        }
        Ok(failed)
    })?;
    if failed > 0 {
        bail!("{failed} of {} objects were not removed", args.objects.len());
    }
    Ok(())
}
