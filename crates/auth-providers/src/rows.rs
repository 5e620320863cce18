//! Checks a password against a row of a database: `password_hash`, `salt` and `is_superuser`.
//!
//! Two caches exist. The answers that [`crate::SourceProvider`] stores expire, so that a changed row takes effect. The
//! verified passwords here belong to a hash, so they never expire, and a client that reconnects after an hour costs a
//! query but no hash. Thus guesses, which need a hash each, do not delay known clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use auth::{
    Credentials, DenyReason, HashError, HashSettings, Login, Missing, Password, ProviderOutcome, StoredPassword,
    Template, TemplateError, TemplateUse, VerifiedPasswords,
};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::source::{Overloaded, QuestionKey};

/// Names of the column or field with the password. The second one is of old versions of EMQX.
#[cfg(any(feature = "mysql", feature = "postgresql", feature = "redis", feature = "sqlite"))]
pub(crate) const PASSWORD_COLUMNS: &[&str] = &["password_hash", "password"];
#[cfg(any(feature = "mysql", feature = "postgresql", feature = "redis", feature = "sqlite"))]
pub(crate) const SALT_COLUMN: &str = "salt";
#[cfg(any(feature = "mysql", feature = "postgresql", feature = "redis", feature = "sqlite"))]
pub(crate) const SUPERUSER_COLUMN: &str = "is_superuser";

/// Number of verified passwords that are cached. About 100 bytes each.
const VERIFIED_MAX: usize = 100_000;
/// Number of slow hashes at a time, of all databases.
const HASHES_MAX: usize = 2;
/// Maximum time that a client waits for its hash to begin. Guesses of others can cause the wait.
const HASH_WAIT_MAX: Duration = Duration::from_secs(2);

/// On Linux, a thread with this nice value gets a tenth of a core that a worker needs as well.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// One permit per slow hash. It is never closed.
static HASHES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(HASHES_MAX)));

/// The row of a user.
#[derive(Clone, Default)]
pub(crate) struct UserRow {
    /// `None`: the user has no password and cannot log in.
    pub password_hash: Option<Vec<u8>>,
    pub salt: Vec<u8>,
    pub is_superuser: bool,
}

/// Checks passwords against rows.
pub(crate) struct RowCheck {
    source: &'static str,
    settings: HashSettings,
    verified: Arc<VerifiedPasswords>,
    /// Costs as much as the row that was read last.
    decoy: Mutex<Arc<StoredPassword>>,
    has_warned: AtomicBool,
}

/// The parts of a question that come from the client.
pub(crate) struct Parameters {
    templates: Vec<Template>,
    template_use: TemplateUse,
    has_empty_values: bool,
}

impl RowCheck {
    /// `source` is the name of the provider.
    pub fn new(source: &'static str, settings: HashSettings) -> Result<RowCheck, String> {
        if let Some(reason) = settings.weakness() {
            tracing::warn!(provider = source, reason, "weak password hashes");
        }
        let decoy = settings.decoy().map_err(|error| error.to_string())?;
        Ok(RowCheck {
            source,
            settings,
            verified: Arc::new(VerifiedPasswords::new(VERIFIED_MAX).map_err(|error| error.to_string())?),
            decoy: Mutex::new(Arc::new(decoy)),
            has_warned: AtomicBool::new(false),
        })
    }

    /// Decides about a client. `None`: there is no row, so the next provider decides, after the time that a wrong
    /// password takes.
    pub async fn outcome(
        &self,
        credentials: &Credentials,
        row: Option<UserRow>,
    ) -> Result<ProviderOutcome, Overloaded> {
        let Some(password) = &credentials.password else {
            return Ok(ProviderOutcome::Ignore);
        };
        let name = credentials.user_name.as_deref().unwrap_or(&credentials.client_id);
        let Some(row) = row else {
            self.check_decoy(name, password).await?;
            return Ok(ProviderOutcome::Ignore);
        };
        let Some(hash) = row.password_hash else {
            self.check_decoy(name, password).await?;
            return Ok(ProviderOutcome::Deny(DenyReason::NotAuthorized));
        };
        let stored = match self.settings.read(&hash, &row.salt) {
            Ok(stored) => stored,
            Err(error) => {
                self.warn(error);
                self.check_decoy(name, password).await?;
                return Ok(ProviderOutcome::Deny(DenyReason::WrongPassword));
            }
        };
        self.set_decoy(&stored);
        Ok(match self.verify(name, stored, password).await? {
            true => ProviderOutcome::Allow(Box::new(Login {
                provider: Some(self.source),
                ..Login::new(row.is_superuser)
            })),
            false => ProviderOutcome::Deny(DenyReason::WrongPassword),
        })
    }

    async fn verify(&self, name: &str, stored: StoredPassword, password: &Password) -> Result<bool, Overloaded> {
        if self.verified.was_verified(name, &stored, password) {
            return Ok(true);
        }
        if self.verified.was_wrong(name, &stored, password) {
            return Ok(false);
        }
        if !self.settings.is_slow() {
            return Ok(self.verified.verify(name, &stored, password));
        }
        let (verified, name, password) = (self.verified.clone(), name.to_owned(), password.clone());
        slow(move || verified.verify(&name, &stored, &password)).await
    }

    async fn check_decoy(&self, name: &str, password: &Password) -> Result<(), Overloaded> {
        let decoy = self.decoy.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if self.verified.was_wrong(name, &*decoy, password) {
            return Ok(());
        }
        if !self.settings.is_slow() {
            self.verified.verify_decoy(name, &*decoy, password);
            return Ok(());
        }
        let (verified, name, password) = (self.verified.clone(), name.to_owned(), password.clone());
        slow(move || verified.verify_decoy(&name, &*decoy, &password)).await
    }

    fn set_decoy(&self, stored: &StoredPassword) {
        let mut decoy = self.decoy.lock().unwrap_or_else(PoisonError::into_inner);
        if decoy.costs_as_much_as(stored) {
            return;
        }
        // Without random bytes the old one stays, which only takes another time.
        if let Ok(new) = stored.decoy() {
            *decoy = Arc::new(new);
        }
    }

    /// Warns once, because a client can cause this as often as it connects.
    fn warn(&self, error: HashError) {
        let provider = self.source;
        if self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::debug!(provider, %error, "a password_hash of the database is invalid");
        } else {
            tracing::warn!(provider, %error, "a password_hash of the database is invalid: its user cannot log in");
        }
    }
}

/// Runs a slow hash outside of the threads that wait for answers.
async fn slow<T: Send + 'static>(hash: impl FnOnce() -> T + Send + 'static) -> Result<T, Overloaded> {
    let permit = timeout(HASH_WAIT_MAX, HASHES.clone().acquire_owned())
        .await
        .map_err(|_| Overloaded)?
        .expect("the semaphore is never closed");
    let running = spawn_blocking(move || {
        // If the client is gone, the hash still occupies a permit until its end.
        let _permit = permit;
        lower_priority();
        hash()
    });
    // The server stops.
    running.await.map_err(|_| Overloaded)
}

/// Lowers the priority of the current thread, so that hashes do not delay messages. After a failure it competes with
/// the workers at equal priority.
fn lower_priority() {
    // On other systems this would change the priority of the whole process.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
}

impl Parameters {
    /// The error names `option`.
    pub fn parse<T: AsRef<str>>(
        template_use: TemplateUse,
        option: &str,
        templates: &[T],
    ) -> Result<Parameters, String> {
        let templates = templates
            .iter()
            .map(|template| Template::parse_for(template_use, template.as_ref()));
        let templates: Result<Vec<Template>, TemplateError> = templates.collect();
        Ok(Parameters {
            templates: templates.map_err(|error| format!("{option}: {error}"))?,
            template_use,
            has_empty_values: false,
        })
    }

    /// Takes an empty text for a value that a client does not have.
    #[cfg(feature = "mongodb")]
    pub fn with_empty_values(self) -> Parameters {
        Parameters {
            has_empty_values: true,
            ..self
        }
    }

    /// Returns the values for a client. `None`: it lacks a value that the question needs, or a password for a login.
    pub fn values(&self, credentials: &Credentials) -> Option<Vec<Vec<u8>>> {
        if self.template_use == TemplateUse::Login {
            credentials.password.as_ref()?;
        }
        let values = self
            .templates
            .iter()
            .map(|template| match template.render(credentials) {
                Err(_) if self.has_empty_values => Ok(Vec::new()),
                rendered => rendered.map(String::into_bytes),
            });
        values.collect::<Result<_, Missing>>().ok()
    }

    /// Returns the key of the question for a client.
    pub fn question(&self, source: &str, credentials: &Credentials) -> Option<QuestionKey> {
        let values = self.values(credentials)?;
        let name = credentials.user_name.as_deref().unwrap_or_default();
        let mut parts = vec![source.as_bytes()];
        if self.template_use == TemplateUse::Login {
            parts.extend([name.as_bytes(), credentials.password.as_ref()?.expose()]);
        }
        parts.extend(values.iter().map(Vec::as_slice));
        Some(QuestionKey::of(&parts))
    }
}

#[cfg(test)]
mod tests;
