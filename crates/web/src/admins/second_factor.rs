//! The second factor of console users: TOTP with recovery codes.
//!
//! `admins-totp` next to the file of users is JSON. Per user it has the secret, the last time step whose code was
//! accepted, and the hashes of the unused recovery codes. The secret itself is stored, because the server computes
//! codes with it. A file that cannot be read prevents the start: without it, passwords alone would be sufficient.
//!
//! The methods that write the file block.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use auth::{CreateError, TOTP_DIGITS, TotpSecret, UserError};
use base64ct::{Base64UrlUnpadded, Encoding};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::warn;
use zeroize::Zeroizing;

use super::{Admins, AdminsError, OneTimePassword, random_letters};
use crate::unix_ms;

/// Next to the file of users.
pub const TOTP_FILE: &str = "admins-totp";
const RECOVERY_CODES: usize = 10;
/// 15 letters of 5 bits each: 75 bits. A plain SHA-256 of such a code cannot be reversed.
const RECOVERY_CODE_LENGTH: usize = 15;
/// Time to enter the first code.
const SET_UP_TIME_MAX: Duration = Duration::from_secs(15 * 60);

/// A step that a user must complete before any other request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredStep {
    /// Replace a one-time password.
    Password,
    /// Set up a second factor.
    SecondFactor,
}

/// An accepted code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedCode {
    Totp,
    Recovery,
}

/// Why a second factor is not set up.
#[derive(Debug)]
pub enum SetUpError {
    /// The second factor is active already.
    Active,
    /// No set-up has begun, or it has expired.
    NotBegun,
    WrongCode,
    Admins(AdminsError),
}

/// A recovery code. It is shown once; only its hash is stored.
pub type RecoveryCode = OneTimePassword;

/// Loaded with the users.
pub(super) struct SecondFactors {
    path: PathBuf,
    is_required: bool,
    /// Held while the file is written. `state` is locked for moments only, because threads that must not block read it.
    writing: Mutex<()>,
    state: Mutex<SecondFactorState>,
}

struct SecondFactorState {
    stored: StoredFactors,
    /// Secrets whose first code was not entered yet, with the time at which they expire.
    pending: HashMap<String, (TotpSecret, Instant)>,
}

/// The file.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredFactors {
    users: BTreeMap<String, StoredFactor>,
    /// Users whose second factor was removed on the command line, with the Unix time in milliseconds. The next start
    /// moves them to the audit log.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    removed: BTreeMap<String, u64>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredFactor {
    secret: TotpSecret,
    /// Codes of this time step and of earlier ones are not accepted.
    last_step: u64,
    /// SHA-256 hashes.
    recovery_codes: BTreeSet<String>,
}

impl StoredFactors {
    fn read(path: &Path) -> Result<StoredFactors, AdminsError> {
        let text = match fs::read(path) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(StoredFactors::default()),
            Err(error) => return Err(AdminsError::read(path, error)),
        };
        serde_json::from_slice(&text).map_err(|error| {
            // The text of the error may contain a secret.
            let reason = format!(
                "line {}, column {} is not valid; restore the file from a backup, or replace it by {{\"users\": {{}}}}, which removes the \
                 second factor of all users",
                error.line(),
                error.column()
            );
            AdminsError::read(path, io::Error::new(io::ErrorKind::InvalidData, reason))
        })
    }

    fn write(&self, path: &Path) -> Result<(), AdminsError> {
        let text = serde_json::to_vec_pretty(self).expect("texts and numbers serialize");
        storage::copy::replace(path, &Zeroizing::new(text)).map_err(|error| AdminsError::Write {
            path: path.to_owned(),
            error,
        })
    }
}

impl SecondFactors {
    pub(super) fn open(users_file: &Path) -> Result<SecondFactors, AdminsError> {
        let path = users_file.with_file_name(TOTP_FILE);
        let state = SecondFactorState {
            stored: StoredFactors::read(&path)?,
            pending: HashMap::new(),
        };
        Ok(SecondFactors {
            path,
            is_required: false,
            writing: Mutex::new(()),
            state: Mutex::new(state),
        })
    }

    /// Begins a change. Other changes wait until the guard is dropped.
    fn begin_change(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The change is on disk when this returns; on an error nothing has changed. `_begun` is the guard of
    /// `begin_change`.
    fn change(&self, _begun: &MutexGuard<'_, ()>, change: impl FnOnce(&mut StoredFactors)) -> Result<(), AdminsError> {
        let mut changed = self.lock().stored.clone();
        change(&mut changed);
        changed.write(&self.path)?;
        self.lock().stored = changed;
        Ok(())
    }

    /// Returns `false` if the user has no second factor.
    pub(super) fn remove(&self, name: &str) -> Result<bool, AdminsError> {
        let begun = self.begin_change();
        self.lock().pending.remove(name);
        if !self.lock().stored.users.contains_key(name) {
            return Ok(false);
        }
        self.change(&begun, |stored| _ = stored.users.remove(name))?;
        Ok(true)
    }

    // The stored state is replaced as a whole, so a panic in another thread cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, SecondFactorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Admins {
    /// With `true`, users without a second factor can only set it up (`api.require_totp`).
    #[must_use]
    pub fn with_required_totp(mut self, is_required: bool) -> Admins {
        self.second_factors.is_required = is_required;
        self
    }

    pub fn is_totp_required(&self) -> bool {
        self.second_factors.is_required
    }

    /// API keys and users of an identity provider have no required step.
    pub fn required_step(&self, name: &str) -> Option<RequiredStep> {
        if self.has_one_time_password(name) {
            return Some(RequiredStep::Password);
        }
        let is_missing = self.is_totp_required() && self.users.contains(name) && !self.has_totp(name);
        is_missing.then_some(RequiredStep::SecondFactor)
    }

    pub fn has_totp(&self, name: &str) -> bool {
        self.second_factors.lock().stored.users.contains_key(name)
    }

    /// Returns the number of unused recovery codes.
    pub fn recovery_codes_left(&self, name: &str) -> usize {
        let state = self.second_factors.lock();
        state
            .stored
            .users
            .get(name)
            .map_or(0, |factor| factor.recovery_codes.len())
    }

    /// Returns a new secret. It takes effect with `confirm_totp`.
    pub fn begin_totp(&self, name: &str, now: Instant) -> Result<TotpSecret, SetUpError> {
        let secret =
            TotpSecret::random().ok_or(SetUpError::Admins(AdminsError::Password(CreateError::NoRandomness)))?;
        let mut state = self.second_factors.lock();
        if !self.users.contains(name) {
            return Err(SetUpError::Admins(AdminsError::User(UserError::Unknown)));
        }
        if state.stored.users.contains_key(name) {
            return Err(SetUpError::Active);
        }
        state.pending.retain(|_, (_, expires_at)| *expires_at > now);
        state
            .pending
            .insert(name.to_owned(), (secret.clone(), now + SET_UP_TIME_MAX));
        Ok(secret)
    }

    /// Activates the secret of `begin_totp` with its first code, and returns the recovery codes.
    pub fn confirm_totp(
        &self,
        name: &str,
        code: &str,
        now: Instant,
        time: SystemTime,
    ) -> Result<Vec<RecoveryCode>, SetUpError> {
        let (codes, hashes) = new_recovery_codes().map_err(SetUpError::Admins)?;
        let begun = self.second_factors.begin_change();
        let secret = {
            let state = self.second_factors.lock();
            if state.stored.users.contains_key(name) {
                return Err(SetUpError::Active);
            }
            let pending = state.pending.get(name).filter(|(_, expires_at)| *expires_at > now);
            let (secret, _) = pending.ok_or(SetUpError::NotBegun)?;
            secret.clone()
        };
        let step = secret.find_step(&normal_code(code), unix_ms(time) / 1000);
        let factor = StoredFactor {
            last_step: step.ok_or(SetUpError::WrongCode)?,
            secret,
            recovery_codes: hashes,
        };
        let changed = self.second_factors.change(&begun, |stored| {
            stored.users.insert(name.to_owned(), factor);
        });
        changed.map_err(SetUpError::Admins)?;
        self.second_factors.lock().pending.remove(name);
        Ok(codes)
    }

    /// Checks a code of the app or a recovery code, and uses it up. `None`: the code is wrong or was used. The caller
    /// limits guesses.
    pub fn use_code(&self, name: &str, code: &str, time: SystemTime) -> Result<Option<AcceptedCode>, AdminsError> {
        let code = normal_code(code);
        let factors = &self.second_factors;
        let begun = factors.begin_change();
        let Some(factor) = factors.lock().stored.users.get(name).cloned() else {
            return Ok(None);
        };
        if !is_of_app(&code) {
            let hash = hash_of(&code);
            if !factor.recovery_codes.contains(&hash) {
                return Ok(None);
            }
            factors.change(&begun, |stored| {
                let factor = stored.users.get_mut(name);
                factor.map(|factor| factor.recovery_codes.remove(&hash));
            })?;
            return Ok(Some(AcceptedCode::Recovery));
        }
        let step = factor.secret.find_step(&code, unix_ms(time) / 1000);
        let Some(step) = step.filter(|step| *step > factor.last_step) else {
            return Ok(None);
        };
        let used = {
            let mut state = factors.lock();
            if let Some(factor) = state.stored.users.get_mut(name) {
                factor.last_step = step;
            }
            state.stored.clone()
        };
        if let Err(error) = used.write(&factors.path) {
            // An administrator must be able to log in and free space on a full disk. The code is used up in memory.
            warn!(%error, "storing a used code failed: after a restart within 90 s it would be accepted again");
        }
        Ok(Some(AcceptedCode::Totp))
    }

    /// Replaces the recovery codes. The old ones stop working.
    pub fn renew_recovery_codes(&self, name: &str) -> Result<Vec<RecoveryCode>, AdminsError> {
        let (codes, hashes) = new_recovery_codes()?;
        let begun = self.second_factors.begin_change();
        if !self.has_totp(name) {
            return Err(AdminsError::User(UserError::Unknown));
        }
        self.second_factors.change(&begun, |stored| {
            if let Some(factor) = stored.users.get_mut(name) {
                factor.recovery_codes = hashes;
            }
        })?;
        Ok(codes)
    }

    /// Returns `false` if the user has no second factor.
    pub fn remove_totp(&self, name: &str) -> Result<bool, AdminsError> {
        let removed = self.second_factors.remove(name);
        self.changes.announce();
        removed
    }

    /// Returns the users whose second factor was removed on the command line, with the Unix time in milliseconds, until
    /// `forget_removed_on_command_line` is called.
    pub fn removed_on_command_line(&self) -> Vec<(String, u64)> {
        let state = self.second_factors.lock();
        let removed = state.stored.removed.iter();
        removed.map(|(name, at_unix_ms)| (name.clone(), *at_unix_ms)).collect()
    }

    pub fn forget_removed_on_command_line(&self) -> Result<(), AdminsError> {
        let begun = self.second_factors.begin_change();
        self.second_factors.change(&begun, |stored| stored.removed.clear())
    }

    /// For the command line, while no server runs. Returns `false` if the user has no second factor. `users_file`: the
    /// file of console users.
    pub fn remove_totp_from_file(users_file: &Path, name: &str) -> Result<bool, AdminsError> {
        let factors = SecondFactors::open(users_file)?;
        let begun = factors.begin_change();
        if !factors.lock().stored.users.contains_key(name) {
            return Ok(false);
        }
        factors.change(&begun, |stored| {
            stored.users.remove(name);
            stored.removed.insert(name.to_owned(), unix_ms(SystemTime::now()));
        })?;
        Ok(true)
    }

    /// A text that changes with the secret. Empty: the user has no second factor.
    pub(super) fn factor_stamp(&self, name: &str) -> String {
        let state = self.second_factors.lock();
        let factor = state.stored.users.get(name);
        factor.map_or_else(String::new, |factor| {
            Base64UrlUnpadded::encode_string(&Sha256::digest(factor.secret.expose()))
        })
    }
}

/// Returns the codes and their hashes.
fn new_recovery_codes() -> Result<(Vec<RecoveryCode>, BTreeSet<String>), AdminsError> {
    let codes = (0..RECOVERY_CODES).map(|_| random_letters(RECOVERY_CODE_LENGTH));
    let codes = codes.collect::<Result<Vec<_>, _>>().map_err(AdminsError::Password)?;
    let hashes = codes.iter().map(|code| hash_of(&normal_code(code.expose()))).collect();
    Ok((codes, hashes))
}

/// Returns whether a code has the form of those of an authenticator app. All others are recovery codes.
pub fn is_of_app(code: &str) -> bool {
    let code = normal_code(code);
    code.len() == TOTP_DIGITS && code.bytes().all(|byte| byte.is_ascii_digit())
}

/// Removes what people add to a code: spaces, dashes and capital letters.
fn normal_code(code: &str) -> Zeroizing<String> {
    let kept = code.chars().filter(|letter| !letter.is_whitespace() && *letter != '-');
    Zeroizing::new(kept.map(|letter| letter.to_ascii_lowercase()).collect())
}

fn hash_of(code: &str) -> String {
    Base64UrlUnpadded::encode_string(&Sha256::digest(code.as_bytes()))
}

#[cfg(test)]
mod tests;
