//! Pools and images that the cluster has from the start.

use std::cell::RefCell;
use std::rc::Rc;

use fieldstone_block::Nanos;
use fieldstone_cluster_model::{Delays, ModelCluster, Store};
use fieldstone_rbd::Timer;
use fieldstone_rbd::pool::{CreateOptions, Pool};
use fieldstone_tasks::Executor;

use crate::{ImageOption, StartError};

/// The most steps that making an image may take.
const STEPS_MAX: u32 = 100_000;

/// A store with these pools and images. Pools get the numbers 1, 2, … as in [`crate::maps`].
pub(crate) fn store(
    pools: &[String],
    pgs: u32,
    images: &[ImageOption],
    seed: u64,
) -> Result<Store, StartError> {
    let cluster = ModelCluster::new(seed, Delays::NONE);
    for pool in pools {
        cluster.add_pool_with(pool, |info| info.pg_num = pgs);
    }
    for (image, number) in images.iter().zip(0..) {
        create(&cluster, image, seed.wrapping_add(number))?;
    }
    Ok(cluster.with_store(std::mem::take))
}

fn create(cluster: &ModelCluster, image: &ImageOption, seed: u64) -> Result<(), StartError> {
    let (client, _) = cluster.client();
    let mut executor = Executor::default();
    let result = Rc::new(RefCell::new(None));
    let place = Rc::clone(&result);
    let ImageOption { pool, name, size_bytes, .. } = image.clone();
    executor.spawn(Box::pin(async move {
        let made = async {
            let pool = Pool::open(client, Timer::new(), &pool, "", seed).await?;
            pool.create(&name, &CreateOptions::new(size_bytes)).await
        };
        *place.borrow_mut() = Some(made.await);
    }));
    for _ in 0..STEPS_MAX {
        let did = executor.run() | cluster.step(Nanos(0));
        if let Some(made) = result.borrow_mut().take() {
            let failed = |error: fieldstone_rbd::RbdError| StartError::Image {
                image: format!("{}/{}", image.pool, image.name),
                reason: error.to_string(),
            };
            return made.map(drop).map_err(failed);
        }
        if !did {
            break;
        }
    }
    let image = format!("{}/{}", image.pool, image.name);
    Err(StartError::Image { image, reason: "it is not made in time".to_owned() })
}
