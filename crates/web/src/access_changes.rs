//! Wakes connections that outlive their request when a user, an API key or a login changes, so that they check their
//! login at once.

use tokio::sync::watch;

/// The owner announces its changes. Cloning gives another handle of the same owner.
#[derive(Clone, Debug, Default)]
pub struct AccessChanges(watch::Sender<u64>);

impl AccessChanges {
    pub fn announce(&self) {
        self.0.send_modify(|number| *number = number.wrapping_add(1));
    }

    fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// Waits for changes of several owners since its creation or the last call.
#[derive(Clone, Debug)]
pub struct AccessWatch([watch::Receiver<u64>; 3]);

impl AccessWatch {
    pub fn new(owners: [&AccessChanges; 3]) -> AccessWatch {
        AccessWatch(owners.map(AccessChanges::subscribe))
    }

    /// Returns after a change. Cancelling it loses no change.
    pub async fn changed(&mut self) {
        let [a, b, c] = &mut self.0;
        // An owner lives as long as the guard, which the caller holds. Without owners there is no change.
        let changed = tokio::select! {
            changed = a.changed() => changed,
            changed = b.changed() => changed,
            changed = c.changed() => changed,
        };
        if changed.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_changed(watch: &mut AccessWatch) -> bool {
        let changed = pin!(watch.changed());
        changed.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn change_of_any_owner_is_seen_once() {
        let owners = [
            AccessChanges::default(),
            AccessChanges::default(),
            AccessChanges::default(),
        ];
        let mut watch = AccessWatch::new([&owners[0], &owners[1], &owners[2]]);
        assert!(!is_changed(&mut watch));
        for owner in &owners {
            let mut other = watch.clone();
            owner.announce();
            assert!(is_changed(&mut watch) && !is_changed(&mut watch));
            assert!(is_changed(&mut other));
        }
    }
}
