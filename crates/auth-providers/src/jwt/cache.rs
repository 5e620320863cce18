//! Verified tokens, so that a client that reconnects does not cost a signature check.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::claims::Claims;
use crate::source::QuestionKey;

/// Claims by a keyed hash of the token. Bounded: if the younger half is full, the older half is dropped.
pub struct VerifiedTokens {
    half: usize,
    tokens: Mutex<Halves>,
}

#[derive(Default)]
struct Halves {
    /// Keys with which the tokens were verified.
    generation: u64,
    young: HashMap<QuestionKey, Arc<Claims>>,
    old: HashMap<QuestionKey, Arc<Claims>>,
}

impl VerifiedTokens {
    /// `max` = 0: stores nothing.
    pub fn new(max: usize) -> VerifiedTokens {
        VerifiedTokens {
            half: max.div_ceil(2),
            tokens: Mutex::default(),
        }
    }

    /// Returns the claims of a token that was verified with the keys of this generation.
    pub fn find(&self, key: &QuestionKey, generation: u64) -> Option<Arc<Claims>> {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.generation != generation {
            return None;
        }
        if let Some(claims) = tokens.young.get(key) {
            return Some(claims.clone());
        }
        let claims = tokens.old.remove(key)?;
        tokens.insert(*key, claims.clone(), self.half);
        Some(claims)
    }

    pub fn insert(&self, key: QuestionKey, generation: u64, claims: Arc<Claims>) {
        if self.half == 0 {
            return;
        }
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.generation > generation {
            // The keys were replaced while the token was verified.
            return;
        }
        if tokens.generation < generation {
            *tokens = Halves {
                generation,
                ..Halves::default()
            };
        }
        tokens.insert(key, claims, self.half);
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.young.len() + tokens.old.len()
    }
}

impl Halves {
    fn insert(&mut self, key: QuestionKey, claims: Arc<Claims>, half: usize) {
        if self.young.len() >= half {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, claims);
    }
}
