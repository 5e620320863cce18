//! The console users of this node and their roles, stored in a file of their own. They are not MQTT users.
//!
//! The file has the format of an MQTT password file, so `tidewire passwd` can edit it. The third field `superuser`
//! marks an administrator and `operator` an operator; `ns:acme::viewer` is a role within a namespace. Users without the
//! field are viewers. Verifying a password takes tens of milliseconds and must not run on the runtime's own threads.
//!
//! A second file lists users with a one-time password, which another user has generated. They may only set a new
//! password. A third file has the second factors (`second_factor.rs`). There is always at least one administrator.

mod second_factor;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use auth::{
    CreateError, Credentials, LoadError, Password, PasswordHash, Provider, ProviderOutcome, UserError, Users,
    UsersProvider, VerifiedPasswords,
};
use tracing::warn;
use zeroize::Zeroizing;

use crate::access_changes::AccessChanges;
use crate::role::{AssignedRole, RoleError};
use second_factor::SecondFactors;
pub use second_factor::{AcceptedCode, RecoveryCode, RequiredStep, SetUpError, TOTP_FILE, is_of_app};

/// Name of the user that the first start creates.
pub const FIRST_ADMIN: &str = "admin";
pub const FILE: &str = "admins";
/// Next to `FILE`: the names of users with a one-time password, one per line.
const ONE_TIME_FILE: &str = "admins-one-time";
/// Next to `FILE`: the generated password of the first administrator, until it is changed.
const FIRST_PASSWORD_FILE: &str = "admin-password";
/// Without letters and digits that look alike.
const PASSWORD_LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
/// 20 letters of 5 bits each: 100 bits.
const PASSWORD_LENGTH: usize = 20;

pub struct Admins {
    path: PathBuf,
    users: Arc<Users>,
    provider: UsersProvider,
    /// Users with a one-time password. Locked for the duration of a change.
    one_time: Mutex<BTreeSet<String>>,
    second_factors: SecondFactors,
    changes: AccessChanges,
}

/// The fields of a user that the API shows.
#[derive(Clone, Debug)]
pub struct AdminSummary {
    pub name: String,
    pub role: AssignedRole,
    pub has_one_time_password: bool,
    pub has_first_password: bool,
    pub has_totp: bool,
}

/// A generated password. It is shown once; only its hash is stored.
pub struct OneTimePassword(Zeroizing<String>);

impl OneTimePassword {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for OneTimePassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Admins {
    /// Reads `<data_dir>/admins`. If the file is missing, creates it with the user `admin` and returns the generated
    /// password, which is also stored in `<data_dir>/admin-password` until it is changed.
    pub fn open_or_create(data_dir: &Path) -> Result<(Admins, Option<OneTimePassword>), AdminsError> {
        let path = data_dir.join(FILE);
        match Users::load_console(&path) {
            Ok(users) => Ok((Admins::new(path, users)?, None)),
            Err(LoadError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(data_dir).map_err(|error| AdminsError::Write {
                    path: path.clone(),
                    error,
                })?;
                let (admins, password) = Admins::create(path, data_dir)?;
                Ok((admins, Some(password)))
            }
            Err(error) => Err(AdminsError::Load(error)),
        }
    }

    /// Reads an existing file.
    pub fn open(path: &Path) -> Result<Admins, AdminsError> {
        let users = Users::load_console(path).map_err(AdminsError::Load)?;
        Admins::new(path.to_owned(), users)
    }

    /// Returns the file with the generated password of the first administrator, if the password was not changed yet.
    pub fn first_password_file(data_dir: &Path) -> Option<PathBuf> {
        Some(data_dir.join(FIRST_PASSWORD_FILE)).filter(|path| path.exists())
    }

    fn create(path: PathBuf, data_dir: &Path) -> Result<(Admins, OneTimePassword), AdminsError> {
        let password = random_password().map_err(AdminsError::Password)?;
        let hash = PasswordHash::create(&Password::new(password.expose())).map_err(AdminsError::Password)?;
        let admins = Admins::new(path, Users::empty().map_err(AdminsError::Password)?)?;
        admins
            .users
            .add(FIRST_ADMIN, hash, true)
            .expect("the name is valid and the table is empty");
        // An administrator whose file was deleted may have left one.
        admins.second_factors.remove(FIRST_ADMIN)?;
        // The password first: an administrator whose password is not stored anywhere could never log in.
        let password_file = data_dir.join(FIRST_PASSWORD_FILE);
        replace_lines(&password_file, password.expose()).map_err(|error| AdminsError::Write {
            path: password_file,
            error,
        })?;
        admins.save()?;
        Ok((admins, password))
    }

    fn new(path: PathBuf, users: Users) -> Result<Admins, AdminsError> {
        for user in users.list() {
            AssignedRole::of_file(&user.role).map_err(|error| AdminsError::Role {
                path: path.clone(),
                name: user.name,
                error,
            })?;
        }
        let users = Arc::new(users);
        // No cache of verified passwords: logins are rare enough to compute the hash each time.
        let no_cache = VerifiedPasswords::new(0).map_err(AdminsError::Password)?;
        let one_time = match fs::read_to_string(path.with_file_name(ONE_TIME_FILE)) {
            Ok(text) => text.lines().map(str::to_owned).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => return Err(AdminsError::read(&path.with_file_name(ONE_TIME_FILE), error)),
        };
        Ok(Admins {
            one_time: Mutex::new(one_time),
            second_factors: SecondFactors::open(&path)?,
            changes: AccessChanges::default(),
            path,
            provider: UsersProvider::new(users.clone(), no_cache),
            users,
        })
    }

    fn save(&self) -> Result<(), AdminsError> {
        self.users.save(&self.path).map_err(|error| AdminsError::Write {
            path: self.path.clone(),
            error,
        })
    }

    /// Announces changes of users.
    pub(crate) fn changes(&self) -> &AccessChanges {
        &self.changes
    }

    pub fn role(&self, name: &str) -> Option<AssignedRole> {
        let user = self.users.get(name)?;
        AssignedRole::of_file(&user.role).ok()
    }

    /// Returns the administrators without a required step.
    pub fn administrators(&self) -> Vec<String> {
        let users = self.users.list().into_iter();
        let ready = users.filter(|user| user.is_superuser && self.required_step(&user.name).is_none());
        ready.map(|user| user.name).collect()
    }

    /// Returns a text that changes with the password and with the second factor. It contains the hash of the password.
    pub fn credentials_stamp(&self, name: &str) -> Option<String> {
        let text = self.users.to_file_text();
        let mut lines = text.lines();
        let hash = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(hash.to_owned() + &self.factor_stamp(name))
    }

    /// Slow, and equally slow for an unknown name.
    pub fn verify(&self, name: &str, password: Password) -> Option<AssignedRole> {
        let copy = Password::new(password.expose());
        let credentials = Credentials {
            client_id: String::new(),
            user_name: Some(name.to_owned()),
            password: Some(password),
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            certificate_common_name: None,
            certificate_subject: None,
            action: None,
        };
        match self.provider.authenticate(&credentials) {
            ProviderOutcome::Allow(_) => {
                if name == FIRST_ADMIN && !self.is_first_password(&copy) {
                    // The password was changed with `tidewire passwd`, which does not know the other file.
                    self.forget_first_password();
                }
                self.role(name)
            }
            ProviderOutcome::Deny(_) | ProviderOutcome::Ignore => None,
        }
    }

    /// Slow. The password is on disk when this returns; on an error the old password stays valid.
    pub fn set_password(&self, name: &str, password: &Password) -> Result<(), AdminsError> {
        let hash = PasswordHash::create(password).map_err(AdminsError::Password)?;
        self.one_change(|one_time| {
            self.change(name, |users| users.set_password(name, hash))?;
            if name == FIRST_ADMIN {
                self.forget_first_password();
            }
            if let Err(error) = self.save_one_time(one_time, |names| _ = names.remove(name)) {
                // The new password is valid; the user is asked to change it once more.
                warn!(%error, "removing the one-time mark of a changed password failed");
            }
            Ok(())
        })
    }

    /// Returns the users sorted by name.
    pub fn list(&self) -> Vec<AdminSummary> {
        let one_time = self.lock();
        let summary = |user: auth::UserSummary| {
            Some(AdminSummary {
                role: AssignedRole::of_file(&user.role).ok()?,
                has_one_time_password: one_time.contains(&user.name),
                has_first_password: self.has_first_password(&user.name),
                has_totp: self.has_totp(&user.name),
                name: user.name,
            })
        };
        self.users.list().into_iter().filter_map(summary).collect()
    }

    /// Whether another user has generated the password.
    pub fn has_one_time_password(&self, name: &str) -> bool {
        self.lock().contains(name)
    }

    /// Slow. Adds a user with a one-time password.
    pub fn add(&self, name: &str, role: &AssignedRole) -> Result<OneTimePassword, AdminsError> {
        if !self.users.contains(name) {
            // `tidewire passwd -D` leaves the second factor of the user.
            self.second_factors.remove(name)?;
        }
        self.with_one_time_password(name, |users, hash| {
            users.add(name, hash, false)?;
            users.set_role(name, role.in_file())
        })
    }

    /// Slow. Replaces a forgotten password with a one-time password.
    pub fn reset_password(&self, name: &str) -> Result<OneTimePassword, AdminsError> {
        let password = self.with_one_time_password(name, |users, hash| users.set_password(name, hash))?;
        if name == FIRST_ADMIN {
            self.forget_first_password();
        }
        Ok(password)
    }

    pub fn set_role(&self, name: &str, role: &AssignedRole) -> Result<(), AdminsError> {
        self.one_change(|_| {
            if !role.is_admin_of_server() {
                self.refuse_last_admin(name)?;
            }
            self.change(name, |users| users.set_role(name, role.in_file()))
        })
    }

    pub fn remove(&self, name: &str) -> Result<(), AdminsError> {
        self.one_change(|one_time| {
            self.refuse_last_admin(name)?;
            self.change(name, |users| users.remove(name))?;
            self.second_factors.remove(name)?;
            if name == FIRST_ADMIN {
                self.forget_first_password();
            }
            self.save_one_time(one_time, |names| _ = names.remove(name))
        })
    }

    /// Runs a change under the lock. Announces it after the lock is released, because the waiting tasks take the lock.
    fn one_change(
        &self,
        change: impl FnOnce(&mut BTreeSet<String>) -> Result<(), AdminsError>,
    ) -> Result<(), AdminsError> {
        let mut one_time = self.lock();
        let changed = change(&mut one_time);
        drop(one_time);
        self.changes.announce();
        changed
    }

    fn refuse_last_admin(&self, name: &str) -> Result<(), AdminsError> {
        let mut admins = self.users.list().into_iter().filter(|user| user.is_superuser);
        match (admins.next(), admins.next()) {
            (Some(only), None) if only.name == name => Err(AdminsError::LastAdmin),
            _ => Ok(()),
        }
    }

    /// Writes the one-time mark before the password, so that a one-time password is never unmarked.
    fn with_one_time_password(
        &self,
        name: &str,
        change: impl FnOnce(&Users, PasswordHash) -> Result<(), UserError>,
    ) -> Result<OneTimePassword, AdminsError> {
        let password = random_password().map_err(AdminsError::Password)?;
        let hash = PasswordHash::create(&Password::new(password.expose())).map_err(AdminsError::Password)?;
        self.one_change(|one_time| {
            let was_there = one_time.contains(name);
            self.save_one_time(one_time, |names| _ = names.insert(name.to_owned()))?;
            let changed = self.change(name, |users| change(users, hash));
            if changed.is_err() && !was_there {
                self.save_one_time(one_time, |names| _ = names.remove(name))?;
            }
            changed
        })?;
        Ok(password)
    }

    /// The change is on disk when this returns; on an error it is rolled back. Part of `one_change`.
    fn change(&self, name: &str, change: impl FnOnce(&Users) -> Result<(), UserError>) -> Result<(), AdminsError> {
        let before = self.users.snapshot(name);
        change(&self.users).map_err(AdminsError::User)?;
        self.save().inspect_err(|_| self.users.restore(name, before))
    }

    fn save_one_time(
        &self,
        names: &mut BTreeSet<String>,
        change: impl FnOnce(&mut BTreeSet<String>),
    ) -> Result<(), AdminsError> {
        let mut changed = names.clone();
        change(&mut changed);
        if changed == *names {
            return Ok(());
        }
        let path = self.path.with_file_name(ONE_TIME_FILE);
        let lines: Vec<&str> = changed.iter().map(String::as_str).collect();
        replace_lines(&path, &lines.join("\n")).map_err(|error| AdminsError::Write { path, error })?;
        *names = changed;
        Ok(())
    }

    // The set is replaced as a whole, so a panic in another thread cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.one_time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the user still has the generated password of the first start.
    pub fn has_first_password(&self, name: &str) -> bool {
        name == FIRST_ADMIN && self.path.with_file_name(FIRST_PASSWORD_FILE).exists()
    }

    fn is_first_password(&self, password: &Password) -> bool {
        let text = fs::read(self.path.with_file_name(FIRST_PASSWORD_FILE)).map(Zeroizing::new);
        text.is_ok_and(|text| text.trim_ascii_end() == password.expose())
    }

    fn forget_first_password(&self) {
        let file = self.path.with_file_name(FIRST_PASSWORD_FILE);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(%error, file = %file.display(), "deleting the file with the outdated first password failed");
            }
            _ => {}
        }
    }
}

fn replace_lines(path: &Path, lines: &str) -> io::Result<()> {
    let text = Zeroizing::new(format!("{lines}\n"));
    storage::copy::replace(path, text.as_bytes())
}

fn random_password() -> Result<OneTimePassword, CreateError> {
    random_letters(PASSWORD_LENGTH)
}

/// Returns random letters in groups of five, such as `xxxxx-xxxxx-xxxxx-xxxxx`.
fn random_letters(length: usize) -> Result<OneTimePassword, CreateError> {
    let mut random = Zeroizing::new(vec![0u8; length]);
    getrandom::fill(&mut random).map_err(|_| CreateError::NoRandomness)?;
    let mut text = Zeroizing::new(String::with_capacity(length + length / 5));
    for (index, byte) in random.iter().enumerate() {
        if index > 0 && index % 5 == 0 {
            text.push('-');
        }
        text.push(char::from(PASSWORD_LETTERS[usize::from(byte % 32)]));
    }
    Ok(OneTimePassword(text))
}

#[derive(Debug)]
pub enum AdminsError {
    Load(LoadError),
    Write {
        path: PathBuf,
        error: io::Error,
    },
    Password(CreateError),
    User(UserError),
    Read {
        path: PathBuf,
        error: io::Error,
    },
    /// A role in the file is not valid.
    Role {
        path: PathBuf,
        name: String,
        error: RoleError,
    },
    /// The change would leave no administrator.
    LastAdmin,
}

impl AdminsError {
    fn read(path: &Path, error: io::Error) -> AdminsError {
        AdminsError::Read {
            path: path.to_owned(),
            error,
        }
    }
}

impl fmt::Display for AdminsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminsError::Load(error) => error.fmt(f),
            AdminsError::Write { path, error } => write!(f, "cannot write {}: {error}", path.display()),
            AdminsError::Password(error) => error.fmt(f),
            AdminsError::User(error) => error.fmt(f),
            AdminsError::Read { path, error } => write!(f, "cannot read {}: {error}", path.display()),
            AdminsError::Role { path, name, error } => write!(f, "{}: user `{name}`: {error}", path.display()),
            AdminsError::LastAdmin => {
                f.write_str("this is the last administrator: give another user the role `admin` first")
            }
        }
    }
}

impl std::error::Error for AdminsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The text of the other variants includes their source.
            AdminsError::Load(error) => error.source(),
            AdminsError::Write { .. }
            | AdminsError::Password(_)
            | AdminsError::User(_)
            | AdminsError::Read { .. }
            | AdminsError::Role { .. }
            | AdminsError::LastAdmin => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::role::Role;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("tidewire-admins-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn first_start_creates_one_admin() {
        let data_dir = directory("first");
        let (admins, password) = Admins::open_or_create(&data_dir).unwrap();
        let password = password.unwrap();
        assert_eq!(
            admins.verify(FIRST_ADMIN, Password::new(password.expose())),
            Some(Role::Admin.of_server())
        );
        let (again, none) = Admins::open_or_create(&data_dir).unwrap();
        assert!(none.is_none());
        assert_eq!(
            again.verify(FIRST_ADMIN, Password::new(password.expose())),
            Some(Role::Admin.of_server())
        );
        assert_eq!(again.verify(FIRST_ADMIN, Password::new("wrong")), None);
        assert_eq!(again.verify("missing", Password::new(password.expose())), None);
        assert!(
            !fs::read_to_string(data_dir.join(FILE))
                .unwrap()
                .contains(password.expose())
        );
        fs::remove_dir_all(&data_dir).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn file_is_readable_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let data_dir = directory("mode");
        Admins::open_or_create(&data_dir).unwrap();
        let mode = fs::metadata(data_dir.join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_dir_all(&data_dir).unwrap();
    }

    #[test]
    fn password_change_without_disk_is_rolled_back() {
        let data_dir = directory("not-saved");
        let (admins, first) = Admins::open_or_create(&data_dir).unwrap();
        fs::remove_dir_all(&data_dir).unwrap();
        admins
            .set_password(FIRST_ADMIN, &Password::new("another one"))
            .unwrap_err();
        assert_eq!(admins.verify(FIRST_ADMIN, Password::new("another one")), None);
        let first = Password::new(first.unwrap().expose());
        assert_eq!(admins.verify(FIRST_ADMIN, first), Some(Role::Admin.of_server()));
    }

    #[test]
    fn changed_password_is_persisted_and_keeps_the_role() {
        let data_dir = directory("change");
        let (admins, first) = Admins::open_or_create(&data_dir).unwrap();
        let file = Admins::first_password_file(&data_dir).expect("the password was not changed yet");
        assert_eq!(fs::read_to_string(file).unwrap().trim_end(), first.unwrap().expose());
        admins.set_password(FIRST_ADMIN, &Password::new("another one")).unwrap();
        assert_eq!(Admins::first_password_file(&data_dir), None);
        let admins = Admins::open(&data_dir.join(FILE)).unwrap();
        assert_eq!(
            admins.verify(FIRST_ADMIN, Password::new("another one")),
            Some(Role::Admin.of_server())
        );
        fs::remove_dir_all(&data_dir).unwrap();
    }

    #[test]
    fn login_with_a_password_from_the_command_line_deletes_the_first_one() {
        let data_dir = directory("passwd");
        let (admins, first) = Admins::open_or_create(&data_dir).unwrap();
        let first = Password::new(first.unwrap().expose());
        assert_eq!(admins.verify(FIRST_ADMIN, first), Some(Role::Admin.of_server()));
        assert!(admins.has_first_password(FIRST_ADMIN));
        let hash = PasswordHash::create(&Password::new("another one")).unwrap();
        let users = Users::load_console(&data_dir.join(FILE)).unwrap();
        users.set_password(FIRST_ADMIN, hash).unwrap();
        users.save(&data_dir.join(FILE)).unwrap();
        let (admins, _) = Admins::open_or_create(&data_dir).unwrap();
        assert_eq!(admins.verify(FIRST_ADMIN, Password::new("wrong")), None);
        assert!(admins.has_first_password(FIRST_ADMIN));
        let role = admins.verify(FIRST_ADMIN, Password::new("another one"));
        assert_eq!(role, Some(Role::Admin.of_server()));
        assert!(!admins.has_first_password(FIRST_ADMIN));
        fs::remove_dir_all(&data_dir).unwrap();
    }

    #[test]
    fn last_admin_stays_and_one_time_password_is_marked() {
        let data_dir = directory("users");
        let (admins, _) = Admins::open_or_create(&data_dir).unwrap();
        assert!(matches!(admins.remove(FIRST_ADMIN), Err(AdminsError::LastAdmin)));
        assert!(matches!(
            admins.set_role(FIRST_ADMIN, &Role::Viewer.of_server()),
            Err(AdminsError::LastAdmin)
        ));
        let password = admins.add("ada", &Role::Viewer.of_server()).unwrap();
        assert!(matches!(
            admins.add("ada", &Role::Admin.of_server()),
            Err(AdminsError::User(UserError::Exists))
        ));
        assert!(matches!(
            admins.reset_password("eve"),
            Err(AdminsError::User(UserError::Unknown))
        ));
        assert_eq!(
            admins.verify("ada", Password::new(password.expose())),
            Some(Role::Viewer.of_server())
        );
        let (again, _) = Admins::open_or_create(&data_dir).unwrap();
        assert!(again.has_one_time_password("ada") && !again.has_one_time_password("eve"));
        again.set_password("ada", &Password::new("of her own")).unwrap();
        assert!(!again.has_one_time_password("ada"));
        again.set_role("ada", &Role::Operator.of_server()).unwrap();
        let (again, _) = Admins::open_or_create(&data_dir).unwrap();
        assert_eq!(again.role("ada"), Some(Role::Operator.of_server()));
        again.set_password("ada", &Password::new("another of her own")).unwrap();
        assert_eq!(
            again.role("ada"),
            Some(Role::Operator.of_server()),
            "a password change keeps the role"
        );
        assert!(matches!(
            again.set_role(FIRST_ADMIN, &Role::Operator.of_server()),
            Err(AdminsError::LastAdmin)
        ));
        again.set_role("ada", &Role::Admin.of_server()).unwrap();
        again.remove(FIRST_ADMIN).unwrap();
        assert_eq!(Admins::first_password_file(&data_dir), None);
        assert!(matches!(again.remove("ada"), Err(AdminsError::LastAdmin)));
        let (again, _) = Admins::open_or_create(&data_dir).unwrap();
        assert_eq!(again.list().len(), 1);
        assert!(!again.list()[0].has_one_time_password);
        fs::remove_dir_all(&data_dir).unwrap();
    }

    #[test]
    fn role_in_a_namespace_is_persisted_and_is_no_administrator() {
        let data_dir = directory("namespace");
        let (admins, _) = Admins::open_or_create(&data_dir).unwrap();
        let role: AssignedRole = "ns:acme::admin".parse().unwrap();
        admins.add("ada", &role).unwrap();
        assert!(matches!(admins.remove(FIRST_ADMIN), Err(AdminsError::LastAdmin)));
        assert!(matches!(
            admins.set_role(FIRST_ADMIN, &role),
            Err(AdminsError::LastAdmin)
        ));
        admins.set_password("ada", &Password::new("of her own")).unwrap();
        let (again, _) = Admins::open_or_create(&data_dir).unwrap();
        assert_eq!(again.role("ada"), Some(role.clone()));
        assert_eq!(again.administrators(), [FIRST_ADMIN]);
        assert_eq!(again.verify("ada", Password::new("of her own")), Some(role));
        again.set_role("ada", &Role::Viewer.of_server()).unwrap();
        let (again, _) = Admins::open_or_create(&data_dir).unwrap();
        assert_eq!(again.role("ada"), Some(Role::Viewer.of_server()));
        // A role that this version does not know must not become another one.
        let file = data_dir.join(FILE);
        again.set_role("ada", &"ns:acme::viewer".parse().unwrap()).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("ns:acme::viewer", "ns:acme::owner")).unwrap();
        let error = Admins::open(&file).err().unwrap().to_string();
        assert!(error.contains("user `ada`: not a role"), "{error}");
        fs::remove_dir_all(&data_dir).unwrap();
    }

    #[test]
    fn one_time_passwords_differ_and_are_never_printed() {
        let (a, b) = (random_password().unwrap(), random_password().unwrap());
        assert_ne!(a.expose(), b.expose());
        assert_eq!(a.expose().len(), 23);
        assert_eq!(format!("{a:?}"), "***");
    }
}
