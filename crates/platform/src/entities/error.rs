//! Errors of saving, finding and deleting entities. The texts are ThingsBoard's, because scripts compare them.

use std::fmt;

use crate::credentials::CredentialsError;
use crate::ids::EntityType;
use crate::repository::{RepositoryError, UniqueConstraint};

#[derive(Debug)]
pub enum EntityError {
    /// An invalid request: HTTP 400, error code 31.
    Invalid(String),
    /// HTTP 404, error code 32.
    NotFound,
    /// The tenant profile's limit is reached: HTTP 403, error code 41.
    Limit(EntityType),
    /// A concurrent change was applied first: HTTP 409, error code 35.
    Version(EntityType),
    Repository(RepositoryError),
}

impl EntityError {
    pub(crate) fn invalid(text: impl Into<String>) -> EntityError {
        EntityError::Invalid(text.into())
    }
}

impl fmt::Display for EntityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntityError::Invalid(text) => f.write_str(text),
            EntityError::NotFound => f.write_str("Requested item wasn't found!"),
            EntityError::Limit(kind) => write!(f, "{}s limit reached", normal_name(*kind)),
            EntityError::Version(kind) => write!(f, "{} was already changed by someone else", normal_name(*kind)),
            EntityError::Repository(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for EntityError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            EntityError::Repository(error) => Some(error),
            _ => None,
        }
    }
}

impl From<CredentialsError> for EntityError {
    fn from(error: CredentialsError) -> EntityError {
        EntityError::invalid(error.to_string())
    }
}

impl From<RepositoryError> for EntityError {
    fn from(error: RepositoryError) -> EntityError {
        match error {
            RepositoryError::Unique { kind, constraint: what } => EntityError::invalid(unique_text(kind, what)),
            RepositoryError::Version { kind, .. } => EntityError::Version(kind),
            other => EntityError::Repository(other),
        }
    }
}

/// For example `Rule chain`.
fn normal_name(kind: EntityType) -> String {
    let name = kind.name().to_lowercase().replace('_', " ");
    let mut letters = name.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn unique_text(kind: EntityType, what: UniqueConstraint) -> &'static str {
    match (kind, what) {
        (EntityType::Device, _) => "Device with such name already exists!",
        (EntityType::DeviceProfile, UniqueConstraint::Key) => {
            "Device profile with such provision device key already exists!"
        }
        (EntityType::DeviceProfile, _) => "Device profile with such name already exists!",
        (EntityType::Asset, _) => "Asset with such name already exists!",
        (EntityType::AssetProfile, _) => "Asset profile with such name already exists!",
        (EntityType::Customer, _) => "Customer with such title already exists!",
        (EntityType::TenantProfile, _) => "Tenant profile with such name already exists!",
        (EntityType::Queue, _) => "Queue with such name already exists!",
        (EntityType::DeviceCredentials, _) => "Specified credentials are already registered!",
        _ => "Such an entity already exists!",
    }
}
