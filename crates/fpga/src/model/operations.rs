//! The model's operations. The CPU crates do them.

use fieldstone_accel::crc32c;
use fieldstone_gf::LinearMap;

use super::sets::Ring;
use super::{Failure, State};
use crate::bitstream;
use crate::descriptor::Descriptor;
use crate::field::Field;
use crate::regs::{
    BEAT_BYTES, C2hOp, H2cOp, MAX_COPY_BYTES, MAX_WIDTH, PLACE_ROW_BYTES, PartitionState,
    ReconfigurableModule, Status, checksum, code, descriptor, load_map, place,
};

/// Statuses that a broken device may give.
const WRONG: [Status; 6] = [
    Status::BadOp,
    Status::HostFault,
    Status::CardFault,
    Status::StaleEpoch,
    Status::NotLoaded,
    Status::HostError,
];

impl State {
    /// Does one descriptor. Returns its result, or the error.
    pub(super) fn operate(
        &mut self,
        function: usize,
        ring: Ring,
        descriptor: &Descriptor,
    ) -> Result<u64, Failure> {
        if self.chance(self.faults.wrong_status) {
            use rand::Rng;
            return Err((WRONG[self.rng.random_range(0..WRONG.len())], 0xbad));
        }
        let field = |field: Field| field.get(&descriptor.0);
        let (source, destination) = (field(descriptor::SOURCE), field(descriptor::DESTINATION));
        let length = field(descriptor::LENGTH);
        for address in [source, destination] {
            if !address.is_multiple_of(BEAT_BYTES as u64) {
                return Err((Status::BadAlignment, address));
            }
        }
        let op = field(descriptor::OP);
        if ring == Ring::C2h {
            return match C2hOp::from_number(op) {
                Some(C2hOp::Nop) => Ok(0),
                Some(C2hOp::Copy) => {
                    let from = self.card_range(function, source, copy_bytes(length)?)?;
                    let to = self.host_range(function, destination, length)?;
                    self.host[to].copy_from_slice(&self.card[from]);
                    Ok(length)
                }
                None => Err((Status::BadOp, op)),
            };
        }
        let op = H2cOp::from_number(op).ok_or((Status::BadOp, op))?;
        if matches!(op, H2cOp::Place | H2cOp::Code) && self.chance(self.faults.too_long) {
            return Err((Status::TooLong, 0));
        }
        let result = match op {
            H2cOp::Nop => 0,
            H2cOp::Copy => {
                let from = self.host_range(function, source, copy_bytes(length)?)?;
                let to = self.card_range(function, destination, length)?;
                self.card[to].copy_from_slice(&self.host[from]);
                length
            }
            H2cOp::Place => self.place(function, descriptor)?,
            H2cOp::LoadMap => self.load_map(function, descriptor)?,
            H2cOp::Code => self.code(function, descriptor)?,
            H2cOp::Checksum => self.checksum(function, descriptor)?,
            H2cOp::Reconfigure => self.reconfigure(function, source, length)?,
        };
        self.done[op as usize] += 1;
        Ok(result)
    }

    fn load_map(&mut self, function: usize, descriptor: &Descriptor) -> Result<u64, Failure> {
        if function != 0 {
            return Err((Status::NotPermitted, function as u64));
        }
        let (source, length) = source_and_length(descriptor);
        let range = self.card_range(function, source, length)?;
        let image = crc32c(&self.card[range]);
        self.loaded = None;
        let map = self.maps.get(&image).ok_or((Status::BadImage, image.into()))?;
        let epoch = load_map::EPOCH.get(&descriptor.0) as u32;
        self.loaded = Some((epoch, map.clone()));
        Ok(0)
    }

    fn place(&mut self, function: usize, descriptor: &Descriptor) -> Result<u64, Failure> {
        let field = |field: Field| field.get(&descriptor.0);
        let (source, length) = source_and_length(descriptor);
        let (width, slot) = (field(place::WIDTH) as usize, field(place::RULE) as u16);
        if length == 0 || !length.is_multiple_of(4) {
            return Err((Status::BadLength, length));
        }
        if !(1..=MAX_WIDTH).contains(&width) {
            return Err((Status::BadParameter, width as u64));
        }
        let epoch = field(place::EPOCH);
        let loaded = self.loaded.clone().filter(|(loaded, _)| u64::from(*loaded) == epoch);
        let (_, known) = loaded.ok_or((Status::StaleEpoch, epoch))?;
        if let Some(module) = known.module
            && (module != self.partition.module || self.partition.state != PartitionState::Running)
        {
            return Err((Status::NotLoaded, module as u64));
        }
        let rule = known.rules.iter().find(|(_, known)| **known == slot).map(|(rule, _)| *rule);
        let rule = rule.and_then(|rule| known.map.rule(rule).ok());
        let rule = rule.ok_or((Status::BadParameter, slot.into()))?;
        let from = self.card_range(function, source, length)?;
        let xs: Vec<u32> = words(&self.card[from]).collect();
        let bytes = (PLACE_ROW_BYTES * xs.len()) as u64;
        let to = self.card_range(function, field(descriptor::DESTINATION), bytes)?;
        let mut table = Vec::with_capacity(bytes as usize);
        for x in &xs {
            let items = rule.map_items(*x, width, &known.reweights);
            let number = |item: &Option<fieldstone_crush::ItemId>| {
                item.map_or(0x7fff_ffff, |item| item.0.cast_unsigned())
            };
            let row = std::iter::once(items.len() as u32).chain(items.iter().map(number));
            let row = row.chain(std::iter::repeat(0x7fff_ffff)).take(PLACE_ROW_BYTES / 4);
            table.extend(row.flat_map(u32::to_le_bytes));
        }
        self.card[to].copy_from_slice(&table);
        Ok(xs.len() as u64)
    }

    fn code(&mut self, function: usize, descriptor: &Descriptor) -> Result<u64, Failure> {
        let field = |field: Field| field.get(&descriptor.0);
        let (source, length) = source_and_length(descriptor);
        let range = self.card_range(function, source, length)?;
        let program = crc32c(&self.card[range]);
        let map = self.programs.get(&program).cloned();
        let map = map.ok_or((Status::BadProgram, program.into()))?;
        let element_bytes = field(code::ELEMENT_BYTES);
        if element_bytes == 0 || !element_bytes.is_multiple_of(BEAT_BYTES as u64) {
            return Err((Status::BadParameter, element_bytes));
        }
        for stripe in 0..field(code::BATCH) {
            let input = field(code::INPUT_BASE) + stripe * field(code::INPUT_BATCH);
            let output = field(code::OUTPUT_BASE) + stripe * field(code::OUTPUT_BATCH);
            let strides = (field(code::INPUT_STRIDE), field(code::OUTPUT_STRIDE));
            self.code_stripe(function, &map, element_bytes, (input, output), strides)?;
        }
        Ok(field(code::BATCH))
    }

    fn code_stripe(
        &mut self,
        function: usize,
        map: &LinearMap,
        element_bytes: u64,
        (input, output): (u64, u64),
        strides: (u64, u64),
    ) -> Result<(), Failure> {
        let shape = map.shape();
        let mut inputs = Vec::new();
        for (shard, elements) in (0..).zip(&shape.input_elements) {
            let bytes = u64::from(*elements) * element_bytes;
            let range = self.card_range(function, input + shard * strides.0, bytes)?;
            inputs.push(self.card[range].to_vec());
        }
        let lengths =
            shape.output_elements.iter().map(|&n| (u64::from(n) * element_bytes) as usize);
        let mut outputs: Vec<Vec<u8>> = lengths.map(|bytes| vec![0; bytes]).collect();
        let from: Vec<&[u8]> = inputs.iter().map(|shard| &shard[..]).collect();
        let mut to: Vec<&mut [u8]> = outputs.iter_mut().map(|shard| &mut shard[..]).collect();
        map.execute(&from, &mut to).map_err(|_| (Status::BadParameter, element_bytes))?;
        for (shard, bytes) in (0..).zip(&outputs) {
            let address = output + shard * strides.1;
            let range = self.card_range(function, address, bytes.len() as u64)?;
            self.card[range].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn checksum(&mut self, function: usize, descriptor: &Descriptor) -> Result<u64, Failure> {
        let (source, length) = source_and_length(descriptor);
        let block_bytes = checksum::BLOCK_BYTES.get(&descriptor.0);
        if length == 0 {
            return Err((Status::BadLength, length));
        }
        let is_single = length <= block_bytes;
        if block_bytes == 0 || !is_single && !block_bytes.is_multiple_of(BEAT_BYTES as u64) {
            return Err((Status::BadParameter, block_bytes));
        }
        let from = self.card_range(function, source, length)?;
        let sums: Vec<u32> = self.card[from].chunks(block_bytes as usize).map(crc32c).collect();
        let destination = descriptor::DESTINATION.get(&descriptor.0);
        let to = self.card_range(function, destination, 4 * sums.len() as u64)?;
        let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        self.card[to].copy_from_slice(&bytes);
        Ok(sums.last().copied().unwrap_or(0).into())
    }

    fn reconfigure(&mut self, function: usize, source: u64, length: u64) -> Result<u64, Failure> {
        if function != 0 {
            return Err((Status::NotPermitted, function as u64));
        }
        let range = self.card_range(function, source, length)?;
        let mut bytes = self.card[range].to_vec();
        if self.chance(self.faults.bad_bitstream) {
            bytes[100] ^= 4;
        }
        match bitstream::check(&bytes) {
            Some(module) => {
                self.partition.module = module;
                self.partition.state = PartitionState::Running;
                self.partition.swaps += 1;
                Ok(0)
            }
            None => {
                self.partition.module = ReconfigurableModule::None;
                self.partition.state = PartitionState::Failed;
                Err((Status::BadBitstream, length))
            }
        }
    }
}

fn source_and_length(descriptor: &Descriptor) -> (u64, u64) {
    (descriptor::SOURCE.get(&descriptor.0), descriptor::LENGTH.get(&descriptor.0))
}

fn copy_bytes(length: u64) -> Result<u64, Failure> {
    let fits = (1..=MAX_COPY_BYTES as u64).contains(&length);
    if fits { Ok(length) } else { Err((Status::BadLength, length)) }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}
