//! Partial bitstreams for the reconfigurable partition.
//!
//! On silicon, the vendor's tools make a module's frames. Here the frames' content stands for the
//! module's configuration: the bytes depend on the module, and are as long as a real partition's
//! column. The device checks them and streams them through its configuration port.

use fieldstone_accel::crc32c;

use crate::regs::{BITSTREAM_MAGIC, ReconfigurableModule, VERSION, bitstream};

/// Bytes of a module's frames.
pub const FRAMES_BYTES: usize = 32 << 10;

/// The bitstream of a module.
#[must_use]
pub fn bitstream(module: ReconfigurableModule) -> Vec<u8> {
    // A multiplicative generator: no two modules get the same content, and every fault changes it.
    let mut state = module as u64 + 1;
    let frames: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    })
    .take(FRAMES_BYTES)
    .collect();
    let mut bytes = vec![0; bitstream::BYTES];
    bitstream::MAGIC.put(&mut bytes, BITSTREAM_MAGIC);
    bitstream::MODULE_ID.put(&mut bytes, module as u64);
    bitstream::FRAMES_BYTES.put(&mut bytes, FRAMES_BYTES as u64);
    bitstream::FRAMES_CRC.put(&mut bytes, crc32c(&frames).into());
    bitstream::VERSION.put(&mut bytes, VERSION);
    let header_crc = crc32c(&bytes[..bitstream::HEADER_CRC.offset]);
    bitstream::HEADER_CRC.put(&mut bytes, header_crc.into());
    bytes.extend(frames);
    bytes
}

/// The module that a bitstream configures, or `None` if the device's checks find it damaged.
#[must_use]
pub fn check(bytes: &[u8]) -> Option<ReconfigurableModule> {
    let (header, frames) = bytes.split_at_checked(bitstream::BYTES)?;
    let sum = |bytes: &[u8]| u64::from(crc32c(bytes));
    let sound = bitstream::MAGIC.get(header) == BITSTREAM_MAGIC
        && bitstream::VERSION.get(header) == VERSION
        && bitstream::HEADER_CRC.get(header) == sum(&header[..bitstream::HEADER_CRC.offset])
        && bitstream::FRAMES_BYTES.get(header) == frames.len() as u64
        && frames.len().is_multiple_of(64)
        && bitstream::FRAMES_CRC.get(header) == sum(frames);
    sound.then(|| ReconfigurableModule::from_number(bitstream::MODULE_ID.get(header)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_damage_is_seen() {
        let module = ReconfigurableModule::List;
        let good = bitstream(module);
        assert_eq!(check(&good), Some(module));
        assert_ne!(good[64..], bitstream(ReconfigurableModule::Tree)[64..]);
        for at in (0..good.len() - 1).step_by(if good.len() > 4096 { 13 } else { 1 }) {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert_eq!(check(&bad), None, "byte {at}");
        }
        assert_eq!(check(&good[..good.len() - 1]), None);
        assert_eq!(check(&good[..63]), None);
    }
}
