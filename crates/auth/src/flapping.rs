//! Finds clients that connect and disconnect too often, such as two devices with the same client id, which take the
//! session from each other.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of clients that are counted at a time. Further ones are not counted until windows have passed.
const CLIENTS_MAX: usize = 100_000;
/// Longer client ids are not counted: they cannot be banned, and would use much memory.
const CLIENT_ID_BYTES_MAX: usize = 1024;

/// Counts the disconnects of each client id.
pub struct FlappingDetector {
    window: Duration,
    max_count: u32,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    by_client: HashMap<Box<str>, Window>,
    /// When windows that have passed were last removed.
    cleaned_at: Option<Instant>,
}

struct Window {
    begin: Instant,
    disconnects: u32,
}

impl FlappingDetector {
    /// A client flaps with `max_count` disconnects within `window`, which begins with the first of them.
    pub fn new(window: Duration, max_count: u32) -> FlappingDetector {
        FlappingDetector {
            window,
            max_count,
            counts: Mutex::default(),
        }
    }

    /// Counts a disconnect. Returns whether the client flaps; its count then begins again.
    pub fn disconnected(&self, client_id: &str, now: Instant) -> bool {
        if client_id.len() > CLIENT_ID_BYTES_MAX {
            return false;
        }
        // Every update leaves the counts valid, so a panic cannot leave them inconsistent.
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let is_past = |window: &Window| now.saturating_duration_since(window.begin) >= self.window;
        if let Some(window) = counts.by_client.get_mut(client_id) {
            if is_past(window) {
                (window.begin, window.disconnects) = (now, 0);
            }
            window.disconnects += 1;
            let flaps = window.disconnects >= self.max_count;
            if flaps {
                counts.by_client.remove(client_id);
            }
            return flaps;
        }
        if self.max_count <= 1 {
            return true;
        }
        // At most once per window, because it looks at every client.
        let cleaned_at = counts.cleaned_at;
        if cleaned_at.is_none_or(|at| now.saturating_duration_since(at) >= self.window) {
            counts.by_client.retain(|_, window| !is_past(window));
            counts.cleaned_at = Some(now);
        }
        if counts.by_client.len() < CLIENTS_MAX {
            let window = Window {
                begin: now,
                disconnects: 1,
            };
            counts.by_client.insert(client_id.into(), window);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    #[test]
    fn client_flaps_with_too_many_disconnects_in_a_window() {
        let detector = FlappingDetector::new(WINDOW, 3);
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        assert!(!detector.disconnected("a", at(0)) && !detector.disconnected("a", at(10)));
        assert!(!detector.disconnected("b", at(15)), "each client is counted alone");
        assert!(detector.disconnected("a", at(59)));
        // The count begins again.
        assert!(!detector.disconnected("a", at(59)) && !detector.disconnected("a", at(60)));
        // The window of b has passed.
        assert!(!detector.disconnected("b", at(75)) && !detector.disconnected("b", at(76)));
        assert!(detector.disconnected("b", at(77)));
    }

    #[test]
    fn one_disconnect_can_be_too_many() {
        assert!(FlappingDetector::new(WINDOW, 1).disconnected("a", Instant::now()));
    }

    #[test]
    fn memory_is_bounded() {
        let detector = FlappingDetector::new(WINDOW, 2);
        let start = Instant::now();
        for n in 0..CLIENTS_MAX + 10 {
            assert!(!detector.disconnected(&n.to_string(), start));
        }
        let count = || detector.counts.lock().unwrap().by_client.len();
        assert_eq!(count(), CLIENTS_MAX);
        assert!(!detector.disconnected("later", start + WINDOW));
        assert_eq!(count(), 1, "the other windows have passed");
    }
}
