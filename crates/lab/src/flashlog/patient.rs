//! Devices that come back by themselves, as a process opens them that waits for them.

use super::watch::{Places, Watched};
use crate::device::timed::Virtual;
use holdfast_block::Device;
use holdfast_block::flashlog::{Error, Options, Role, Watch};
use std::sync::Arc;

/// Of all devices.
const POLICY: &str = "log=alone,log.gone=wait:60s+alone,main.gone=wait:60s,backup.gone=wait:60s";

/// How the processes of a life use their set.
pub(super) struct Patient {
    pub(super) options: Options,
    watch: Option<Arc<Watch>>,
    watched: Arc<Watched>,
}

impl Patient {
    /// With devices that are waited for if these come back by themselves.
    pub(super) fn of(watched: &Arc<Watched>, options: &Options) -> Patient {
        if !watched.returns() {
            return Patient { options: options.clone(), watch: None, watched: Arc::clone(watched) };
        }
        let options = Options { timer: Arc::new(Virtual::default()), ..options.clone() };
        let policy = POLICY.parse().expect("a policy");
        let watch = Watch::new(policy, &options, Box::new(Places(Arc::clone(watched))));
        let options = Options { watch: Some(Arc::clone(&watch)), ..options };
        Patient { options, watch: Some(watch), watched: Arc::clone(watched) }
    }

    /// The device as it is used.
    pub(super) fn over(&self, role: Role, device: &Arc<dyn Device>) -> Result<Arc<dyn Device>, Error> {
        match &self.watch {
            Some(watch) => match watch.over(role, Arc::clone(device)) {
                // Nobody knows it yet, so it is not waited for. Whoever is told of that tries again.
                Err(_) if self.watched.is_away() => {
                    self.watched.put_back();
                    watch.over(role, Arc::clone(device))
                }
                over => over,
            },
            None => Ok(Arc::clone(device)),
        }
    }
}
