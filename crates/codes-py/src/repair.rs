//! `RepairPlan` and `Read`: repairs that read only what they need.

use std::sync::Arc;

use fieldstone_codes::{Code as Codes, RepairPlan as CodesPlan, ShardRead, StripeError, stripe};
use pyo3::prelude::*;
use pyo3::types::PySlice;

use crate::buffers::{Buffers, new_array};
use crate::refused;

/// The reads of a plan from one shard.
#[pyclass(frozen, module = "fieldstone_codes")]
pub(crate) struct Read {
    code: Arc<dyn Codes>,
    read: ShardRead,
}

#[pymethods]
impl Read {
    /// The shard.
    #[getter]
    fn shard(&self) -> usize {
        self.read.shard
    }

    /// The byte ranges to read of a shard of `shard_bytes` bytes, in order.
    fn slices<'py>(
        &self,
        py: Python<'py>,
        shard_bytes: usize,
    ) -> PyResult<Vec<Bound<'py, PySlice>>> {
        check(&*self.code, shard_bytes)?;
        let ranges = self.read.ranges_in(shard_bytes as u64, self.code.elements());
        // The range is inside a shard, whose length is a usize.
        let slice = |range: std::ops::Range<u64>| {
            PySlice::new(py, range.start as isize, range.end as isize, 1)
        };
        Ok(ranges.map(slice).collect())
    }

    /// The total length of these ranges in bytes.
    fn len_bytes(&self, shard_bytes: usize) -> PyResult<usize> {
        check(&*self.code, shard_bytes)?;
        Ok(stripe::read_bytes(&*self.code, &self.read, shard_bytes))
    }

    fn __repr__(&self) -> String {
        let parts = (self.read.element_count(), self.code.elements());
        format!("<Read: {} of {} elements of shard {}>", parts.0, parts.1, self.read.shard)
    }
}

/// A plan to recompute lost shards from others. It reads as little as the code allows.
#[pyclass(frozen, module = "fieldstone_codes")]
pub(crate) struct RepairPlan {
    code: Arc<dyn Codes>,
    plan: Arc<CodesPlan>,
}

impl RepairPlan {
    pub(crate) fn new(code: Arc<dyn Codes>, plan: Arc<CodesPlan>) -> Self {
        Self { code, plan }
    }
}

#[pymethods]
impl RepairPlan {
    /// The lost shards, in the caller's order.
    #[getter]
    fn lost(&self) -> Vec<usize> {
        self.plan.lost.clone()
    }

    /// The reads, in the order in which `execute` takes them.
    #[getter]
    fn reads(&self) -> Vec<Read> {
        let read = |read: &ShardRead| Read { code: Arc::clone(&self.code), read: read.clone() };
        self.plan.reads.iter().map(read).collect()
    }

    /// Bytes to read in total, for shards of `shard_bytes` bytes.
    fn read_bytes(&self, shard_bytes: usize) -> PyResult<usize> {
        check(&*self.code, shard_bytes)?;
        let bytes = |read| stripe::read_bytes(&*self.code, read, shard_bytes);
        Ok(self.plan.reads.iter().map(bytes).sum())
    }

    /// Computes the lost shards, into `out` or as rows of a new array, from the reads: `inputs[i]`
    /// is the content of `reads[i]`, its slices one after the other.
    #[pyo3(signature = (inputs, out=None))]
    fn execute<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut buffers = Buffers::default();
        let lengths = buffers.read_all("inputs", inputs)?;
        let made = match (out, lengths.first()) {
            (Some(_), _) => None,
            (None, len_bytes) => {
                let row_bytes = self.shard_bytes(len_bytes.copied().unwrap_or(0));
                Some(new_array(py, self.plan.lost.len(), row_bytes)?)
            }
        };
        buffers.write_all("out", out.or(made.as_ref()).expect("given or made"))?;
        buffers.compute(py, |(inputs, mut outputs)| {
            stripe::repair(&*self.code, &self.plan, &inputs, &mut outputs)
        })?;
        Ok(made)
    }

    fn __repr__(&self) -> String {
        let reads: Vec<usize> = self.plan.reads.iter().map(|read| read.shard).collect();
        format!("<RepairPlan of {}: {:?} from {reads:?}>", self.code.profile(), self.plan.lost)
    }
}

impl RepairPlan {
    /// The length of the shards whose first read has `len_bytes` bytes.
    fn shard_bytes(&self, len_bytes: usize) -> usize {
        let part = u128::from(self.plan.reads[0].element_count());
        let whole = len_bytes as u128 * u128::from(self.code.elements()) / part;
        usize::try_from(whole).unwrap_or(usize::MAX)
    }
}

fn check(code: &dyn Codes, shard_bytes: usize) -> PyResult<()> {
    let granule_bytes = code.layout().granule_bytes(code.elements());
    if shard_bytes.is_multiple_of(granule_bytes) {
        return Ok(());
    }
    let profile = code.profile();
    Err(refused(&StripeError::Granule { profile, granule_bytes, shard_bytes }))
}
