//! The commands of `rados` that work on extended attributes, maps and watchers of objects.

use std::io::{self, Read, Write};

use anyhow::{Context, bail};
use bytes::Bytes;
use fieldstone_rados::op::ObjectOps;
use fieldstone_rados::op::results::{self, Watchers};

use super::super::ceph::CephArgs;
use super::{Object, PoolArgs};

/// The most keys in one answer.
const KEYS_MAX: u64 = 512;

/// Options of commands on an object.
#[derive(clap::Args, Debug)]
pub(super) struct ObjectArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// The object.
    object: String,
}

/// Options of commands on a key of an object.
#[derive(clap::Args, Debug)]
pub(super) struct KeyArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// The object.
    object: String,
    /// The name of the attribute, or the key.
    key: String,
}

/// Options of commands that set a value.
#[derive(clap::Args, Debug)]
pub(super) struct ValueArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// The object.
    object: String,
    /// The name of the attribute, or the key.
    key: String,
    /// The value. [default: stdin]
    value: Option<String>,
}

impl ValueArgs {
    fn value(&self) -> anyhow::Result<Vec<u8>> {
        if let Some(value) = &self.value {
            return Ok(value.clone().into_bytes());
        }
        let mut value = Vec::new();
        io::stdin().read_to_end(&mut value).context("stdin")?;
        Ok(value)
    }
}

/// The data of the first operation after its execution.
async fn data_of(object: &Object, ops: ObjectOps) -> anyhow::Result<Bytes> {
    let reply = object.operate(ops).await?;
    Ok(reply.ops.into_iter().next().map(|op| op.data).unwrap_or_default())
}

/// Executes operations without a result on an object.
fn change(
    ceph: &CephArgs,
    (pool, object): (&PoolArgs, &str),
    fill: impl FnOnce(&mut ObjectOps),
) -> anyhow::Result<()> {
    let (pool, object) = (pool.clone(), object.to_owned());
    let mut ops = ObjectOps::new();
    fill(&mut ops);
    ceph.with_cluster(|cluster| async move {
        let object = Object::open(cluster, &pool, &object).await?;
        object.operate(ops).await.map(drop)
    })
}

/// Executes an operation on an object and gives its data.
fn ask(
    ceph: &CephArgs,
    (pool, object): (&PoolArgs, &str),
    fill: impl FnOnce(&mut ObjectOps),
) -> anyhow::Result<Bytes> {
    let (pool, object) = (pool.clone(), object.to_owned());
    let mut ops = ObjectOps::new();
    fill(&mut ops);
    ceph.with_cluster(|cluster| async move {
        let object = Object::open(cluster, &pool, &object).await?;
        data_of(&object, ops).await
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn to_stdout(value: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(value)?;
    out.flush()?;
    Ok(())
}

pub(super) fn list_xattrs(ceph: &CephArgs, args: &ObjectArgs) -> anyhow::Result<()> {
    let data = ask(ceph, (&args.pool, &args.object), |ops| {
        ops.get_xattrs();
    })?;
    for name in results::decode_xattrs(&data)?.keys() {
        print_line!("{}", text(name));
    }
    Ok(())
}

pub(super) fn get_xattr(ceph: &CephArgs, args: &KeyArgs) -> anyhow::Result<()> {
    let value = ask(ceph, (&args.pool, &args.object), |ops| {
        ops.get_xattr(&args.key);
    })?;
    to_stdout(&value)
}

pub(super) fn set_xattr(ceph: &CephArgs, args: &ValueArgs) -> anyhow::Result<()> {
    let value = args.value()?;
    change(ceph, (&args.pool, &args.object), |ops| {
        ops.set_xattr(&args.key, &value);
    })
}

pub(super) fn remove_xattr(ceph: &CephArgs, args: &KeyArgs) -> anyhow::Result<()> {
    change(ceph, (&args.pool, &args.object), |ops| {
        ops.remove_xattr(&args.key);
    })
}

pub(super) fn list_keys(ceph: &CephArgs, args: &ObjectArgs) -> anyhow::Result<()> {
    let (pool, object) = (args.pool.clone(), args.object.clone());
    ceph.with_cluster(|cluster| async move {
        let object = Object::open(cluster, &pool, &object).await?;
        let mut after = Bytes::new();
        loop {
            let mut ops = ObjectOps::new();
            ops.omap_get_keys(&after, KEYS_MAX);
            let (keys, more) = results::decode_keys(&data_of(&object, ops).await?)?;
            keys.iter().for_each(|key| print_line!("{}", text(key)));
            match keys.last() {
                Some(last) if more => after = last.clone(),
                _ => return Ok(()),
            }
        }
    })
}

pub(super) fn list_values(ceph: &CephArgs, args: &ObjectArgs) -> anyhow::Result<()> {
    let (pool, object) = (args.pool.clone(), args.object.clone());
    ceph.with_cluster(|cluster| async move {
        let object = Object::open(cluster, &pool, &object).await?;
        let mut after = Bytes::new();
        loop {
            let mut ops = ObjectOps::new();
            ops.omap_get_values(&after, b"", KEYS_MAX);
            let (entries, more) = results::decode_omap(&data_of(&object, ops).await?)?;
            for (key, value) in &entries {
                print_line!("{}\nvalue ({} bytes) :", text(key), value.len());
                print_text!("{}\n", hex_dump(value));
            }
            match entries.last_key_value() {
                Some((last, _)) if more => after = last.clone(),
                _ => return Ok(()),
            }
        }
    })
}

/// Bytes as lines of 16, in hexadecimal and as text.
fn hex_dump(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for (line, part) in bytes.chunks(16).enumerate() {
        let _ = write!(out, "{:08x}  ", line * 16);
        for at in 0..16 {
            let _ = match part.get(at) {
                Some(byte) => write!(out, "{byte:02x} "),
                None => write!(out, "   "),
            };
            if at == 7 {
                out.push(' ');
            }
        }
        let printable = |&byte: &u8| if (0x20..0x7f).contains(&byte) { byte as char } else { '.' };
        let _ = writeln!(out, " |{}|", part.iter().map(printable).collect::<String>());
    }
    let _ = writeln!(out, "{:08x}", bytes.len());
    out
}

pub(super) fn get_value(ceph: &CephArgs, args: &KeyArgs) -> anyhow::Result<()> {
    let key = args.key.as_bytes();
    let data = ask(ceph, (&args.pool, &args.object), |ops| {
        ops.omap_get_by_keys([key]);
    })?;
    match results::decode_values(&data)?.get(key) {
        Some(value) => to_stdout(value),
        None => bail!("{}/{}: it has no key {:?}", args.pool.pool, args.object, args.key),
    }
}

pub(super) fn set_value(ceph: &CephArgs, args: &ValueArgs) -> anyhow::Result<()> {
    let value = args.value()?;
    change(ceph, (&args.pool, &args.object), |ops| {
        ops.omap_set([(args.key.as_bytes(), &value[..])]);
    })
}

pub(super) fn remove_key(ceph: &CephArgs, args: &KeyArgs) -> anyhow::Result<()> {
    change(ceph, (&args.pool, &args.object), |ops| {
        ops.omap_remove_keys([args.key.as_bytes()]);
    })
}

pub(super) fn list_watchers(ceph: &CephArgs, args: &ObjectArgs) -> anyhow::Result<()> {
    let data = ask(ceph, (&args.pool, &args.object), |ops| {
        ops.list_watchers();
    })?;
    for watcher in Watchers::decode(&data)?.0 {
        print_line!(
            "watcher={} client.{} cookie={}",
            watcher.address,
            watcher.watcher.client,
            watcher.watcher.cookie
        );
    }
    Ok(())
}
