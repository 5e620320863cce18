//! `tidewire passwd`: hashes a password, or keeps a password file as `mosquitto_passwd` does.

use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use auth::{Password, PasswordHash, SCRAM_ITERATIONS, ScramMethod, UserError, UserRole, Users};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};

use web::admins::Admins;
use web::role::AssignedRole;

use crate::config::files::chain;
use crate::output::{EXIT_FAILURE, EXIT_USAGE, fail, print};

/// MQTT carries no longer one [MQTT-3.1.3-12].
const PASSWORD_BYTES_MAX: u64 = 65_535;

pub fn command() -> Command {
    Command::new("passwd")
        .about("Hash a password, or add, change and delete users in a password file")
        .long_about(
            "Without FILE the hash is printed, for `access.users` in the configuration. With FILE and USER the user is added \
             or its password changed. The password is asked for, or read as one line from standard input.",
        )
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .requires("user")
                .help("Password file"),
        )
        .arg(Arg::new("user").value_name("USER").help("User name"))
        .arg(Arg::new("password").value_name("PASSWORD").requires("batch").help("Password, with -b only"))
        .arg(flag("create", 'c', "Start a new file; refuse to overwrite one"))
        .arg(flag("delete", 'D', "Delete the user").conflicts_with_all(["create", "batch", "superuser"]))
        .arg(flag("batch", 'b', "Take the password from the command line, where others can see it"))
        .arg(
            Arg::new("initial")
                .long("initial")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["file", "create", "delete"])
                .help("Print the password of `admin` that the first start has generated, if it was not changed yet"),
        )
        .arg(
            Arg::new("scram")
                .long("scram")
                .value_name("METHOD")
                .value_parser(ScramMethod::ALL.map(ScramMethod::name))
                .conflicts_with_all(["delete", "initial"])
                .help("Store a SCRAM verifier, for enhanced authentication (access.scram); a login with the password works too"),
        )
        .arg(
            Arg::new("iterations")
                .long("iterations")
                .value_name("N")
                .requires("scram")
                .value_parser(value_parser!(u32))
                .help(format!("Iterations of the SCRAM verifier, which the client computes at each login [default: {SCRAM_ITERATIONS}]")),
        )
        .arg(
            Arg::new("remove-totp")
                .long("remove-totp")
                .action(ArgAction::SetTrue)
                .requires("user")
                .conflicts_with_all(["create", "delete", "batch", "scram", "superuser", "role"])
                .help(
                    "Remove the second factor of a user of the console, for example after the loss of the device, while the server is stopped. FILE is the \
                     file `admins` of the data directory. The password stays",
                ),
        )
        .arg(Arg::new("superuser").long("superuser").help("Make the user a superuser: access rules do not apply").action(ArgAction::SetTrue))
        .arg(
            Arg::new("role")
                .long("role")
                .value_name("ROLE")
                .value_parser(|text: &str| text.parse::<AssignedRole>())
                .requires("file")
                .conflicts_with_all(["superuser", "delete"])
                .help(
                    "Role of a user of the console, in the file `admins` of the data directory: viewer, operator, admin, or \
                     ns:NAMESPACE::ROLE for a role within a namespace; a new user without it is a viewer",
                ),
        )
}

fn flag(name: &'static str, short: char, help: &'static str) -> Arg {
    Arg::new(name).short(short).help(help).action(ArgAction::SetTrue)
}

/// `data_dir` reads the data directory from the configuration.
pub fn run(matches: &ArgMatches, data_dir: impl FnOnce(&ArgMatches) -> Result<PathBuf, ExitCode>) -> ExitCode {
    if matches.get_flag("initial") {
        return data_dir(matches).map_or_else(|code| code, |data_dir| print_initial(&data_dir));
    }
    let file = matches.get_one::<PathBuf>("file");
    let result = match (file, matches.get_one::<String>("user")) {
        (Some(file), Some(user)) if matches.get_flag("delete") => delete(file, user),
        (Some(file), Some(user)) if matches.get_flag("remove-totp") => remove_totp(file, user),
        (Some(file), Some(user)) => set(file, user, matches),
        _ if matches.get_flag("delete") || matches.get_flag("create") => {
            return fail(EXIT_USAGE, &"FILE and USER are needed");
        }
        _ => return print_hash(matches),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(EXIT_FAILURE, &message),
    }
}

fn print_initial(data_dir: &Path) -> ExitCode {
    let Some(file) = Admins::first_password_file(data_dir) else {
        let message = format!(
            "{} has no initial password: it was changed, or the server has not started yet",
            data_dir.display()
        );
        return fail(EXIT_FAILURE, &message);
    };
    match fs::read_to_string(&file) {
        Ok(password) => print(&format!("{}\n", password.trim_end())),
        Err(error) => fail(EXIT_FAILURE, &format!("cannot read {}: {error}", file.display())),
    }
}

fn print_hash(matches: &ArgMatches) -> ExitCode {
    match read_password().and_then(|password| hash(&password, matches)) {
        Ok(hash) => print(&format!("{}\n", hash.as_str())),
        Err(message) => fail(EXIT_FAILURE, &message),
    }
}

fn set(file: &Path, user: &str, matches: &ArgMatches) -> Result<(), String> {
    let is_there = file.exists();
    if matches.get_flag("create") && is_there {
        return Err(format!("{} exists already; omit -c to change it", file.display()));
    }
    let users = if is_there {
        load(file)?
    } else {
        Users::empty().map_err(|error| chain(&error))?
    };
    let known = users.get(user).map(|known| known.role);
    let wanted = matches.get_one::<AssignedRole>("role");
    let role = match (wanted, known) {
        (Some(wanted), _) => wanted.in_file(),
        (None, _) if matches.get_flag("superuser") => UserRole::Superuser,
        (None, known) => known.unwrap_or(UserRole::User),
    };
    if wanted.is_some() && role != UserRole::Superuser {
        refuse_last_admin(&users, file, user)?;
    }
    let password = match matches.get_one::<String>("password") {
        Some(password) => Password::new(password.as_bytes()),
        None => read_password()?,
    };
    users
        .set_with_role(user, hash(&password, matches)?, role)
        .map_err(|error| format!("{user}: {error}"))?;
    save(&users, file)
}

fn delete(file: &Path, user: &str) -> Result<(), String> {
    let users = load(file)?;
    if file.file_name().is_some_and(|name| name == web::admins::FILE) {
        refuse_last_admin(&users, file, user)?;
    }
    match users.remove(user) {
        Ok(()) => save(&users, file),
        Err(UserError::Unknown) => Err(format!("{} has no user `{user}`", file.display())),
        Err(error) => Err(format!("{user}: {error}")),
    }
}

fn remove_totp(file: &Path, user: &str) -> Result<(), String> {
    match Admins::remove_totp_from_file(file, user) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("user `{user}` of {} has no second factor", file.display())),
        Err(error) => Err(chain(&error)),
    }
}

/// A console without an administrator cannot be administered.
fn refuse_last_admin(users: &Users, file: &Path, user: &str) -> Result<(), String> {
    let mut admins = users.list().into_iter().filter(|known| known.is_superuser);
    match (admins.next(), admins.next()) {
        (Some(only), None) if only.name == user => Err(format!(
            "{user} is the last administrator in {}: give another user `--role admin` first",
            file.display()
        )),
        _ => Ok(()),
    }
}

/// Also accepts operators, because the file may be that of the console. The server refuses them in a file of MQTT
/// users.
fn load(file: &Path) -> Result<Users, String> {
    Users::load_console(file).map_err(|error| chain(&error))
}

fn save(users: &Users, file: &Path) -> Result<(), String> {
    if let Some(directory) = file.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::create_dir_all(directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    }
    users
        .save(file)
        .map_err(|error| format!("cannot write {}: {error}", file.display()))
}

fn hash(password: &Password, matches: &ArgMatches) -> Result<PasswordHash, String> {
    let method = matches
        .get_one::<String>("scram")
        .and_then(|name| ScramMethod::of_name(name));
    let hash = match method {
        Some(method) => {
            let iterations = matches
                .get_one::<u32>("iterations")
                .copied()
                .unwrap_or(SCRAM_ITERATIONS);
            PasswordHash::create_scram(password, method, iterations)
        }
        None => PasswordHash::create(password),
    };
    hash.map_err(|error| chain(&error))
}

fn read_password() -> Result<Password, String> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return read_line().map(Password::new);
    }
    let password = ask("Password: ")?;
    if password != ask("Again: ")? {
        return Err("the passwords differ".into());
    }
    Ok(Password::new(password))
}

const CTRL_C: u8 = 3;

/// Reads a password without echo.
pub(crate) fn ask(prompt: &str) -> Result<String, String> {
    let describe = |error: &dyn std::fmt::Display| format!("cannot ask for the password: {error}");
    let _ = write!(io::stderr(), "{prompt}");
    let stdin = io::stdin();
    let shown = tcgetattr(&stdin).map_err(|error| describe(&error))?;
    let mut hidden = shown.clone();
    // Ctrl-C would leave the terminal as it is now: it ends the line instead.
    hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
    hidden.special_codes[SpecialCodeIndex::VEOL] = CTRL_C;
    tcsetattr(&stdin, OptionalActions::Flush, &hidden).map_err(|error| describe(&error))?;
    let line = read_line();
    let restored = tcsetattr(&stdin, OptionalActions::Flush, &shown);
    let _ = writeln!(io::stderr());
    restored.map_err(|error| describe(&error))?;
    match line {
        Ok(line) if line.as_bytes().contains(&CTRL_C) => Err("interrupted".into()),
        line => line,
    }
}

fn read_line() -> Result<String, String> {
    let unreadable = |error: &dyn std::fmt::Display| format!("cannot read the password: {error}");
    let mut bytes = Vec::new();
    for byte in io::stdin().lock().take(PASSWORD_BYTES_MAX + 2).bytes() {
        bytes.push(byte.map_err(|error| unreadable(&error))?);
        if matches!(bytes.last(), Some(b'\n' | &CTRL_C)) {
            break;
        }
    }
    let mut line = String::from_utf8(bytes).map_err(|error| unreadable(&error))?;
    line.truncate(line.trim_end_matches(['\r', '\n']).len());
    if line.is_empty() {
        Err("the password is empty".into())
    } else {
        Ok(line)
    }
}
