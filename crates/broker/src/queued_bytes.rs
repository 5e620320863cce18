//! The bytes of a queue of a session. While `limits.max_queued_bytes_per_user` is set, they are also part of the sum of
//! the session's user, which all shards share.
//!
//! Invariant: the sum of a user is the sum over its queues. Each change of a queue changes both, and dropping a queue
//! removes its bytes.

use std::sync::Arc;

use crate::owners::UserAccount;

#[derive(Debug, Default)]
pub struct QueuedBytes {
    bytes: usize,
    /// `None` if the user has no limit.
    user: Option<Arc<UserAccount>>,
}

impl QueuedBytes {
    #[inline]
    pub fn get(&self) -> usize {
        self.bytes
    }

    /// Returns the user whose sum contains the bytes.
    pub fn user(&self) -> Option<&Arc<UserAccount>> {
        self.user.as_ref()
    }

    /// Adds bytes, unless the sum of the user would exceed `user_max`. Returns whether they were added.
    #[inline]
    pub fn try_add(&mut self, bytes: usize, user_max: u64) -> bool {
        let user = self.user.as_ref();
        let is_added = user.is_none_or(|user| user.try_add_queued(bytes as u64, user_max));
        if is_added {
            self.bytes += bytes;
        }
        is_added
    }

    /// Adds bytes of messages that are queued already, also above the limit.
    #[inline]
    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        if let Some(user) = &self.user {
            user.add_queued(bytes as u64);
        }
    }

    #[inline]
    pub fn remove(&mut self, bytes: usize) {
        self.bytes -= bytes;
        if let Some(user) = &self.user {
            user.remove_queued(bytes as u64);
        }
    }

    /// The size of a part of the queue has become known.
    pub fn resize(&mut self, from: usize, to: usize) {
        match to >= from {
            true => self.add(to - from),
            false => self.remove(from - to),
        }
    }

    /// Returns whether the limit of the user allows more bytes.
    pub fn is_user_below(&self, bytes: usize, user_max: u64) -> bool {
        let user = self.user.as_ref();
        user.is_none_or(|user| user.queued_bytes().saturating_add(bytes as u64) <= user_max)
    }

    /// Returns whether dropping messages of this queue makes space for more bytes. It does not if other queues use the
    /// limit, and if the limit is lower than before: then new messages must wait until the user has read others.
    pub fn can_make_space(&self, bytes: usize, user_max: u64) -> bool {
        self.user.as_ref().is_none_or(|user| {
            let sum = user.queued_bytes();
            let others = sum.saturating_sub(self.bytes as u64);
            sum <= user_max && others.saturating_add(bytes as u64) <= user_max
        })
    }

    /// Moves the bytes to the sum of another user. `None`: to that of no user.
    pub fn count_for(&mut self, user: Option<Arc<UserAccount>>) {
        if user.as_ref().map(Arc::as_ptr) == self.user.as_ref().map(Arc::as_ptr) {
            // Other shards must not see the bytes twice.
            return;
        }
        if let Some(user) = &user {
            user.add_queued(self.bytes as u64);
        }
        if let Some(before) = std::mem::replace(&mut self.user, user) {
            before.remove_queued(self.bytes as u64);
        }
    }
}

impl Drop for QueuedBytes {
    fn drop(&mut self) {
        self.count_for(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owners::Owners;

    #[test]
    fn sum_of_a_user_follows_all_its_queues() {
        let owners = Owners::default();
        let (user, other) = (owners.user("user:a"), owners.user("user:b"));
        let queue = |user: &Arc<UserAccount>| {
            let mut queue = QueuedBytes::default();
            queue.count_for(Some(user.clone()));
            queue
        };
        let (mut one, mut two) = (queue(&user), queue(&user));
        assert!(one.try_add(60, 100) && two.try_add(40, 100));
        assert!(!one.try_add(1, 100) && !one.is_user_below(1, 100));
        assert_eq!((one.get(), two.get(), user.queued_bytes()), (60, 40, 100));
        assert!(one.can_make_space(60, 100) && !one.can_make_space(61, 100));
        assert!(!one.can_make_space(1, 99), "the limit is lower now");
        one.resize(60, 70);
        two.resize(40, 10);
        two.remove(10);
        assert_eq!(user.queued_bytes(), 70);
        one.count_for(Some(other.clone()));
        assert_eq!((user.queued_bytes(), other.queued_bytes()), (0, 70));
        one.count_for(None);
        assert!(one.try_add(1000, 0), "without a user there is no limit");
        one.count_for(Some(other.clone()));
        assert_eq!(other.queued_bytes(), 1070);
        drop(one);
        assert_eq!(other.queued_bytes(), 0);
    }
}
