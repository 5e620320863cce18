//! Limits the questions to other systems that have no answer yet: their number, their memory, and the share of an
//! address. Without it, a slow system would let unverified clients fill the memory.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker::{AuthOutcome, ConnectCredentials, client_network, has_fair_share};
use mqtt::ReasonCode;

/// Half of them is for any address, the other half for addresses with at most an eighth. This also holds for memory.
const QUESTIONS_MAX: usize = 16_384;
/// Memory of the credentials of all open questions.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// The answer if too many questions are open.
pub const TOO_MANY_QUESTIONS: AuthOutcome = AuthOutcome::Deny {
    reason: ReasonCode::ServerBusy,
    detail: "too many clients wait for authentication providers",
};

#[derive(Clone, Default)]
pub struct OpenQuestions(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    questions: usize,
    bytes: usize,
    by_network: HashMap<IpAddr, NetworkCounts>,
}

#[derive(Clone, Copy, Default)]
struct NetworkCounts {
    questions: usize,
    bytes: usize,
}

/// A question without an answer. It is closed when this is dropped.
pub struct OpenQuestion {
    questions: OpenQuestions,
    network: IpAddr,
    bytes: usize,
}

impl OpenQuestions {
    /// Opens the question of a client. `None` if too many are open.
    pub fn open_for(&self, credentials: &ConnectCredentials) -> Option<OpenQuestion> {
        // The question has the credentials, and the provider a copy.
        let bytes = 2 * credentials.memory_bytes() + credentials.packet_bytes;
        self.open(client_network(credentials.address), bytes)
    }

    /// Opens a question about actions of a client. `None` if too many are open.
    pub fn open_for_actions(&self, address: IpAddr, bytes: usize) -> Option<OpenQuestion> {
        self.open(client_network(address), bytes)
    }

    fn open(&self, network: IpAddr, bytes: usize) -> Option<OpenQuestion> {
        let mut counts = self.lock();
        let own = counts.by_network.get(&network).copied().unwrap_or_default();
        let (questions, all_bytes) = (counts.questions + 1, counts.bytes + bytes);
        let own = NetworkCounts {
            questions: own.questions + 1,
            bytes: own.bytes + bytes,
        };
        if !has_fair_share(questions, own.questions, QUESTIONS_MAX) || !has_fair_share(all_bytes, own.bytes, BYTES_MAX)
        {
            return None;
        }
        (counts.questions, counts.bytes) = (questions, all_bytes);
        counts.by_network.insert(network, own);
        Some(OpenQuestion {
            questions: self.clone(),
            network,
            bytes,
        })
    }

    // Every update leaves the counts valid, so a panic cannot leave them inconsistent.
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenQuestion {
    fn drop(&mut self) {
        let mut counts = self.questions.lock();
        counts.questions -= 1;
        counts.bytes -= self.bytes;
        match counts.by_network.get_mut(&self.network) {
            Some(own) if own.questions > 1 => {
                own.questions -= 1;
                own.bytes -= self.bytes;
            }
            _ => drop(counts.by_network.remove(&self.network)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(n: u8) -> IpAddr {
        [192, 0, 2, n].into()
    }

    #[test]
    fn one_network_cannot_open_all_questions() {
        let questions = OpenQuestions::default();
        let open = |n| questions.open(network(n), 100);
        let first: Vec<OpenQuestion> = std::iter::from_fn(|| open(1)).collect();
        assert_eq!(first.len(), QUESTIONS_MAX / 2);
        let second: Vec<OpenQuestion> = std::iter::from_fn(|| open(2)).collect();
        assert_eq!(second.len(), QUESTIONS_MAX / 8);
        assert!(open(3).is_some());
        drop((first, second));
        assert!(open(1).is_some());
        let counts = questions.lock();
        assert_eq!((counts.questions, counts.bytes, counts.by_network.len()), (0, 0, 0));
    }

    #[test]
    fn memory_of_open_questions_is_bounded() {
        let questions = OpenQuestions::default();
        let half = questions.open(network(1), BYTES_MAX / 2);
        assert!(half.is_some() && questions.open(network(1), 1).is_none());
        assert!(questions.open(network(2), BYTES_MAX / 8 + 1).is_none());
        let eighths: Vec<OpenQuestion> = (2..=5)
            .filter_map(|n| questions.open(network(n), BYTES_MAX / 8))
            .collect();
        assert_eq!(eighths.len(), 4);
        assert!(questions.open(network(6), 1).is_none());
    }
}
