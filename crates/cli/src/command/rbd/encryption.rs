//! `rbd encryption format`: makes an image begin with a LUKS header.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::{Subcommand, ValueEnum};
use fieldstone_block::Op;
use fieldstone_luks::Passphrase;
use fieldstone_luks::format::{self, FormatOptions, NewHeader, Version};
use fieldstone_rbd::ImageSpec;
use fieldstone_rbd::find;
use fieldstone_rbd::header::Header;
use fieldstone_units as units;

use super::super::ceph::{self, CephArgs};
use super::Context;
use super::names::{Name, PlaceArgs};
use super::transfer::{CHUNK_BYTES, OpenImage, Piece};

/// Work with encrypted images.
#[derive(Subcommand, Debug)]
pub(super) enum Command {
    /// Make an image an encrypted one. What the image held is lost.
    Format(Args),
}

/// Options of `rbd encryption format`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// The image, as [POOL/[NAMESPACE/]]IMAGE.
    image: String,
    /// The format of the header.
    format: Format,
    /// The file with the passphrase. A line feed at its end does not count.
    passphrase_file: PathBuf,
    /// The cipher.
    #[arg(long, value_name = "CIPHER", default_value = "aes-256")]
    cipher_alg: Cipher,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Sectors of 512 bytes, keys derived with PBKDF2.
    Luks1,
    /// Sectors of 4096 bytes, keys derived with Argon2id.
    Luks2,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Cipher {
    #[value(name = "aes-128")]
    Aes128,
    #[value(name = "aes-256")]
    Aes256,
}

pub(super) fn run(ceph: &CephArgs, command: &Command) -> anyhow::Result<()> {
    let Command::Format(args) = command;
    let name = args.place.image(&args.image)?;
    let passphrase = Passphrase::read(&args.passphrase_file)?;
    let mut session = ceph.connect()?;
    let context = Context::of(&session);
    let (path, wanted) = (name.path(), name.clone());
    let formatted = ceph::run(&mut session, async move { load(&context, &wanted).await })
        .and_then(|image| new_header(args, &image, &passphrase))
        .and_then(|header| {
            let spec = ImageSpec { read_only: false, ..name.spec() };
            write(OpenImage::open(&mut session, spec)?, header)
        });
    session.close();
    formatted.with_context(|| format!("image {path} cannot be formatted"))
}

async fn load(context: &Context, name: &Name) -> anyhow::Result<Header> {
    let pool = context.pool(&name.place).await?;
    let store = context.store(&pool, &name.place);
    let id = find::id_of(&store, &name.image).await?;
    Ok(Header::load(&store, &id, &name.image).await?)
}

fn new_header(args: &Args, image: &Header, passphrase: &Passphrase) -> anyhow::Result<NewHeader> {
    if image.parent.is_some() {
        bail!("it is a clone, and its parent's data would not be encrypted; flatten it first");
    }
    let options = FormatOptions {
        version: match args.format {
            Format::Luks1 => Version::Luks1,
            Format::Luks2 => Version::Luks2,
        },
        key_bytes: match args.cipher_alg {
            Cipher::Aes128 => 32,
            Cipher::Aes256 => 64,
        },
        // librbd refuses data that begins within a stripe period.
        align_bytes: image.layout.object_bytes() * image.layout.stripe_count(),
        slot: None,
    };
    let mut source = File::open("/dev/urandom").context("/dev/urandom")?;
    let mut failed = None;
    let header = format::create(&options, passphrase, |bytes| {
        if let Err(error) = source.read_exact(bytes) {
            failed = Some(error);
        }
    })?;
    if let Some(error) = failed {
        return Err(error).context("/dev/urandom");
    }
    if header.data_offset_bytes >= image.size_bytes {
        bail!(
            "it has {}, and the data would begin at {}; resize it first",
            units::size(image.size_bytes),
            units::size(header.data_offset_bytes)
        );
    }
    Ok(header)
}

/// Writes the header. Zeroes follow up to the data, so that no older key material is left.
fn write(mut image: OpenImage<'_>, header: NewHeader) -> anyhow::Result<()> {
    let mut bytes = Bytes::from(header.bytes);
    let mut at = bytes.len() as u64;
    let written = image
        .pump(
            Op::WriteZeroes,
            || {
                let len_bytes = (header.data_offset_bytes - at).min(CHUNK_BYTES);
                let offset_bytes = at;
                at += len_bytes;
                let piece = Piece { offset_bytes, len_bytes, data: Bytes::new() };
                Ok((len_bytes > 0).then_some(piece))
            },
            |_, _| Ok(()),
        )
        .and_then(|()| {
            // Behind the zeroes, and in one request: a header is there when all of it is.
            image.pump(
                Op::Write,
                || {
                    let data = std::mem::take(&mut bytes);
                    let len_bytes = data.len() as u64;
                    Ok((len_bytes > 0).then_some(Piece { offset_bytes: 0, len_bytes, data }))
                },
                |_, _| Ok(()),
            )
        });
    let closed = image.close();
    written.and(closed)
}
