//! The password file: Mosquitto's `name:hash` per line, `#` comments, with an optional third field `superuser`.
//!
//! ```text
//! # comment
//! alice:$argon2id$v=19$m=19456,t=2,p=1$…$…
//! root:$7$101$…$…:superuser
//! ```
//!
//! The file of the console's users has the same format. Only there, the third field may also be `operator`, or a role
//! within a namespace: `ns:acme::viewer`.
//!
//! Mosquitto reads the same file and ignores the third field. Loading is all or nothing, and reports every invalid
//! line. Errors contain nothing of a line except the user name, because the rest may be a plain-text password.
//!
//! Saving replaces the file atomically and drops comments. A new file is readable by its owner only. A replaced file
//! retains owner, group and mode, because the server may run as another user than the one who changes the file.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::{NAMESPACE_ROLE, StoredUser, USER_NAME_BYTES_MAX, UserError, UserRole, Users, check_name};
use crate::password::{CreateError, HashError, PasswordHash, random_bytes};

/// Maximum size of a password file: a million users at about 200 bytes, plus margin.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Maximum length of a line: a name, a hash and the superuser field, plus margin.
const LINE_BYTES_MAX: usize = USER_NAME_BYTES_MAX + 1024;
const SUPERUSER: &str = "superuser";
const OPERATOR: &str = "operator";
const HEADER: &str = "# Users: name:hash[:superuser]. Rewritten when users change at run time, without comments.\n";

impl Users {
    /// Reads a password file of MQTT users.
    pub fn load(path: &Path) -> Result<Users, LoadError> {
        let text = read_bounded(path)?;
        Users::parse(path, &text)
    }

    /// Reads a file of console users. Only there, a user may be an operator.
    pub fn load_console(path: &Path) -> Result<Users, LoadError> {
        let text = read_bounded(path)?;
        Users::parse_lines(path, &text, FileKind::Console)
    }

    /// As [`Users::load`], from text that is already read. `path` is used in messages.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Users, LoadError> {
        Users::parse_lines(path, text, FileKind::Mqtt)
    }

    fn parse_lines(path: &Path, text: &[u8], kind: FileKind) -> Result<Users, LoadError> {
        let users = Users::empty().map_err(LoadError::Random)?;
        let mut bad_lines = Vec::new();
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            if let Err(error) = users.add_line(line, kind) {
                bad_lines.push((index + 1, error));
            }
        }
        if bad_lines.is_empty() {
            return Ok(users);
        }
        Err(LoadError::Lines(PasswordFileErrors {
            path: path.to_owned(),
            bad_lines,
        }))
    }

    /// Returns the text of the password file, sorted by name.
    pub fn to_file_text(&self) -> String {
        let mut text = String::from(HEADER);
        for user in self.sorted() {
            text.push_str(&user.name);
            text.push(':');
            text.push_str(user.hash.as_str());
            let role = match &user.role {
                UserRole::User => None,
                UserRole::InNamespace(role) => Some(&**role),
                UserRole::Operator => Some(OPERATOR),
                UserRole::Superuser => Some(SUPERUSER),
            };
            if let Some(role) = role {
                text.push(':');
                text.push_str(role);
            }
            text.push('\n');
        }
        text
    }

    /// Replaces the file atomically: after a crash it has the old or the new contents.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        // Follow a symbolic link, so that its target is replaced and not the link.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let directory = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let suffix = random_bytes::<8>().map_err(io::Error::other)?;
        let temporary = directory.join(format!(".users-{:016x}.tmp", u64::from_le_bytes(suffix)));
        let written = write_with_mode_of(&target, &temporary, self.to_file_text().as_bytes())
            .and_then(|()| fs::rename(&temporary, &target))
            .and_then(|()| sync_directory(&directory));
        if written.is_err() {
            // Report the first error. The temporary file may not exist.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn add_line(&self, line: &[u8], kind: FileKind) -> Result<(), LineError> {
        if line.len() > LINE_BYTES_MAX {
            return Err(LineError::TooLong);
        }
        let line = str::from_utf8(line).map_err(|_| LineError::NotUtf8)?.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let user = parse_line(line, kind)?;
        if self.contains(&user.name) {
            return Err(LineError::Duplicate { name: user.name.into() });
        }
        self.write().put(user).map_err(LineError::User)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    Mqtt,
    Console,
}

fn parse_line(line: &str, kind: FileKind) -> Result<StoredUser, LineError> {
    let (name, rest) = line.split_once(':').ok_or(LineError::NoColon)?;
    let name = name.trim();
    check_name(name).map_err(LineError::User)?;
    let (hash, role) = match rest.split_once(':') {
        // Only a hash has fields after it. Any other text is a plain-text password, which may contain a colon.
        Some((hash, role)) if hash.trim().starts_with('$') => (hash, Some(role)),
        _ => (rest, None),
    };
    let hash = PasswordHash::parse(hash.trim()).map_err(|error| match error {
        HashError::NotHashed => LineError::PlainText { name: name.to_owned() },
        error => LineError::Hash {
            name: name.to_owned(),
            error,
        },
    })?;
    let role = match (role.map(str::trim), kind) {
        (None, _) => UserRole::User,
        (Some(SUPERUSER), _) => UserRole::Superuser,
        (Some(OPERATOR), FileKind::Console) => UserRole::Operator,
        (Some(role), FileKind::Console) if role.starts_with(NAMESPACE_ROLE) => UserRole::InNamespace(role.into()),
        (Some(OPERATOR), FileKind::Mqtt) => return Err(LineError::OperatorOfMqtt { name: name.to_owned() }),
        (Some(_), _) => return Err(LineError::Role { name: name.to_owned() }),
    };
    Ok(StoredUser {
        name: name.into(),
        hash,
        role,
    })
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, LoadError> {
    let failed = |error| LoadError::Io {
        path: path.to_owned(),
        error,
    };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(LoadError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}

/// Writes a new file with the owner, group and mode of `model`. Without a model, only the owner has access.
fn write_with_mode_of(model: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    #[cfg(unix)]
    match fs::metadata(model) {
        Ok(model) => copy_access(&file, &model)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    file.sync_all()
}

/// Copies owner, group and mode. Without root privileges the owner cannot be changed, and the group only to a group of
/// the process. If the group cannot be set, group permissions are removed, because another group would get them.
#[cfg(unix)]
fn copy_access(file: &File, model: &fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    const GROUP: u32 = 0o070;
    let mut mode = model.mode() & 0o777;
    let own = file.metadata()?;
    let is_same = (own.uid(), own.gid()) == (model.uid(), model.gid());
    if !is_same
        && fchown(file, Some(model.uid()), Some(model.gid())).is_err()
        && fchown(file, None, Some(model.gid())).is_err()
    {
        mode &= !GROUP;
    }
    file.set_permissions(fs::Permissions::from_mode(mode))
}

/// Makes the rename durable.
fn sync_directory(directory: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

#[derive(Debug)]
pub enum LoadError {
    Io { path: PathBuf, error: io::Error },
    TooLarge { path: PathBuf },
    Random(CreateError),
    Lines(PasswordFileErrors),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Io { path, .. } => write!(f, "cannot read the password file {}", path.display()),
            LoadError::TooLarge { path } => {
                write!(
                    f,
                    "the password file {} is larger than {FILE_BYTES_MAX} bytes",
                    path.display()
                )
            }
            LoadError::Random(_) => f.write_str("cannot prepare the user table"),
            LoadError::Lines(errors) => errors.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::Io { error, .. } => Some(error),
            LoadError::Random(error) => Some(error),
            LoadError::TooLarge { .. } | LoadError::Lines(_) => None,
        }
    }
}

/// All invalid lines. Displayed as one `file:line: reason` per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PasswordFileErrors {
    pub path: PathBuf,
    /// Line numbers from 1.
    pub bad_lines: Vec<(usize, LineError)>,
}

impl fmt::Display for PasswordFileErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        for (index, (line, error)) in self.bad_lines.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{path}:{line}: {error}")?;
            if let LineError::PlainText { name } = error {
                write!(f, "; store its hash with: tidewire passwd '{path}' '{name}'")?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineError {
    TooLong,
    NotUtf8,
    NoColon,
    User(UserError),
    Duplicate { name: String },
    PlainText { name: String },
    Hash { name: String, error: HashError },
    Role { name: String },
    OperatorOfMqtt { name: String },
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LineError::TooLong => write!(f, "the line is longer than {LINE_BYTES_MAX} bytes"),
            LineError::NotUtf8 => f.write_str("the line is not UTF-8"),
            LineError::NoColon => f.write_str("the line is not `name:hash`"),
            LineError::User(error) => error.fmt(f),
            LineError::Duplicate { name } => write!(f, "user `{name}` is already defined on an earlier line"),
            LineError::PlainText { name } => write!(f, "the password of user `{name}` is in plain text"),
            LineError::Hash { name, error } => write!(f, "user `{name}`: {error}"),
            LineError::Role { name } => write!(f, "user `{name}`: the field after the hash must be `{SUPERUSER}`"),
            LineError::OperatorOfMqtt { name } => write!(
                f,
                "user `{name}`: only users of the console can have the role `{OPERATOR}`; remove the field"
            ),
        }
    }
}

impl std::error::Error for LineError {}
