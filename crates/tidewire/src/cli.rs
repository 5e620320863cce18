//! The command line: what can be typed, and what then runs.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use clap_complete::Shell;

use crate::backup;
use crate::client;
use crate::config::show::{ShowOptions, show};
use crate::config::{self, ConfigDiagnostic, ConfigSources, Listener, LoadedConfig, listed, schema};
#[cfg(feature = "platform")]
use crate::demo::{self, Demo};
use crate::device_platform::{self, SCRIPT_WORKER};
use crate::doctor;
use crate::features;
use crate::health;
use crate::import;
use crate::integration_command::{self, ACTIONS, CONNECTORS, SOURCES};
use crate::journal_command;
use crate::logging::{self, LogEnvironment};
#[cfg(feature = "reference")]
use crate::man;
use crate::output::{EXIT_FAILURE, EXIT_USAGE, fail, print, print_error};
use crate::passwd;
#[cfg(feature = "reference")]
use crate::reference;
use crate::serve::{CompanionTask, ServeOptions, StartFailure, node_name, restart, serve};
#[cfg(feature = "top")]
use crate::top;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[cfg(feature = "platform")]
const ABOUT: &str =
    "An MQTT broker, data-integration engine and device platform. Without a command it runs the server.";
#[cfg(not(feature = "platform"))]
const ABOUT: &str = "An MQTT broker and data-integration engine. Without a command it runs the server.";

/// Runs the program with these arguments; the first one is its name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    if args.len() == 2 && args[1] == SCRIPT_WORKER {
        return device_platform::run_script_worker();
    }
    match command().try_get_matches_from(args) {
        Ok(matches) => dispatch(&matches),
        Err(error) => refuse(&error),
    }
}

/// Prints help or an error. clap's own `exit` would not return.
fn refuse(error: &clap::Error) -> ExitCode {
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    let _ = error.print();
    if is_help {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_USAGE)
    }
}

pub fn command() -> Command {
    Command::new("tidewire")
        .about(ABOUT)
        .version(VERSION)
        .args(config_args())
        .args(serve_args())
        .subcommands([
            Command::new("serve")
                .about("Run the broker (the default)")
                .args(config_args())
                .args(serve_args()),
            Command::new("check")
                .about("Check the configuration and print the listeners")
                .args(config_args()),
            #[cfg(feature = "platform")]
            demo::command().args(config_args()).arg(quiet_arg()),
            config_command(),
            client::publish_command(),
            client::subscribe_command(),
            integration_command::rule_command(),
            CONNECTORS.command(),
            ACTIONS.command(),
            SOURCES.command(),
            #[cfg(feature = "top")]
            top::command(),
            health::command().args(config_args()),
            doctor::command().args(config_args()),
            #[cfg(feature = "bench")]
            bench::cli::command(),
            passwd::command().args(config_args()),
            journal_command::command(),
            backup::backup_command(),
            backup::restore_command(),
            import::command(),
            completion_command(),
            #[cfg(feature = "reference")]
            man::command(),
            #[cfg(feature = "reference")]
            reference::command(),
            version_command(),
        ])
}

pub(crate) fn config_args() -> [Arg; 2] {
    [
        Arg::new("config")
            .long("config")
            .value_name("PATH")
            .value_parser(value_parser!(PathBuf))
            .help("Configuration file [default: ./tidewire.toml, else /etc/tidewire/tidewire.toml]"),
        Arg::new("set")
            .long("set")
            .value_name("KEY=VALUE")
            .value_parser(Assignment)
            .action(ArgAction::Append)
            .hide_possible_values(true)
            .help("Set one option, for example --set mqtt.max_qos=1; can be repeated"),
    ]
}

/// Arguments of the server besides those of the configuration.
fn serve_args() -> impl IntoIterator<Item = Arg> {
    [
        #[cfg(feature = "platform")]
        demo_arg(),
        quiet_arg(),
    ]
}

#[cfg(feature = "platform")]
fn demo_arg() -> Arg {
    Arg::new("demo")
        .long("demo")
        .action(ArgAction::SetTrue)
        .help("Start with ThingsBoard's demo users (public passwords; do not use in production)")
}

fn quiet_arg() -> Arg {
    Arg::new("quiet")
        .long("quiet")
        .action(ArgAction::SetTrue)
        .help("Do not print the start-up box")
}

fn version_command() -> Command {
    Command::new("version").about("Print the version").arg(
        Arg::new("features")
            .long("features")
            .action(ArgAction::SetTrue)
            .help("List the parts that this build contains, and those that it does not contain"),
    )
}

fn config_command() -> Command {
    Command::new("config")
        .about("Show or document the configuration")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("show")
                .about("Print the effective configuration as TOML")
                .args(config_args())
                .arg(
                    Arg::new("origin")
                        .long("origin")
                        .action(ArgAction::SetTrue)
                        .help("Print the source of each value"),
                )
                .arg(
                    Arg::new("all")
                        .long("all")
                        .action(ArgAction::SetTrue)
                        .help("Include the defaults"),
                ),
        )
        .subcommand(Command::new("reference").about("Print the reference of all options (Markdown)"))
        .subcommand(Command::new("example").about("Print a configuration file with every option"))
}

fn completion_command() -> Command {
    Command::new("completion").about("Print a completion script").arg(
        Arg::new("shell")
            .value_name("SHELL")
            .required(true)
            .value_parser(value_parser!(Shell)),
    )
}

/// Any `key=value`; its possible values exist so that completion knows every key.
#[derive(Clone)]
struct Assignment;

impl TypedValueParser for Assignment {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &std::ffi::OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(
            schema::complete_keys()
                .into_iter()
                .map(|key| PossibleValue::new(format!("{key}="))),
        ))
    }
}

fn dispatch(matches: &ArgMatches) -> ExitCode {
    match matches.subcommand() {
        None => run_serve(matches, matches),
        Some(("serve", own)) => run_serve(matches, own),
        #[cfg(feature = "platform")]
        Some(("demo", own)) => run_demo(matches, own),
        Some(("check", own)) => run_check(matches, own),
        Some(("config", own)) => run_config(matches, own),
        Some(("pub", own)) => client::publish(own),
        Some(("sub", own)) => client::subscribe(own),
        Some(("rule", own)) => integration_command::run_rule(own, |own| sources(matches, own)),
        Some(("connector", own)) => CONNECTORS.run(own, |own| sources(matches, own)),
        Some(("action", own)) => ACTIONS.run(own, |own| sources(matches, own)),
        Some(("source", own)) => SOURCES.run(own, |own| sources(matches, own)),
        #[cfg(feature = "top")]
        Some(("top", own)) => top::run(own, &sources(matches, own)),
        Some(("health", own)) => health::run(own, &sources(matches, own)),
        Some(("doctor", own)) => doctor::run(&sources(matches, own)),
        #[cfg(feature = "bench")]
        Some(("bench", own)) => bench::cli::run(own),
        Some(("passwd", own)) => passwd::run(own, |own| load(matches, own).map(|loaded| loaded.config.data_dir)),
        Some(("journal", own)) => journal_command::run(own, |own| data_dir(matches, own)),
        Some(("backup", own)) => with_data_dir(matches, own, |data_dir| backup::backup(own, data_dir)),
        Some(("restore", own)) => with_data_dir(matches, own, |data_dir| backup::restore(own, data_dir)),
        Some(("import", own)) => import::run(own, |own| data_dir(matches, own)),
        Some(("completion", own)) => run_completion(own),
        #[cfg(feature = "reference")]
        Some(("man", own)) => man::run(own, command()),
        #[cfg(feature = "reference")]
        Some(("reference", own)) => reference::run(own),
        Some(("version", own)) => print(&features::version(own.get_flag("features"))),
        Some((name, _)) => unreachable!("clap knows no command `{name}`"),
    }
}

fn run_serve(root: &ArgMatches, own: &ArgMatches) -> ExitCode {
    let is_quiet = root.get_flag("quiet") || own.get_flag("quiet");
    serve_from(&sources(root, own), is_quiet, None)
}

fn serve_from(sources: &ConfigSources, is_quiet: bool, beside: Option<Box<dyn CompanionTask>>) -> ExitCode {
    // Before anything of the data directory is read.
    let carried_out = match restart::run_restore(sources) {
        Ok(carried_out) => carried_out,
        Err(message) => return fail(EXIT_FAILURE, &message),
    };
    match config::load(sources) {
        Err(diagnostics) => {
            match restart::reject_restore(&config::data_dir(sources), &StartFailure::from(listed(&diagnostics))) {
                Some(code) => code,
                None => report(&diagnostics),
            }
        }
        Ok(loaded) => {
            let log = Arc::default();
            let node_name = node_name(&loaded.config);
            match logging::install(&loaded.config.log, &node_name, LogEnvironment::of_process(), &log) {
                Err(message) => fail(EXIT_FAILURE, &message),
                Ok(log_file) => serve(
                    &loaded,
                    sources,
                    &ServeOptions {
                        is_quiet,
                        log_file,
                        log,
                        companion: beside,
                        restore_result: carried_out,
                    },
                ),
            }
        }
    }
}

#[cfg(feature = "platform")]
fn run_demo(root: &ArgMatches, own: &ArgMatches) -> ExitCode {
    let mut sources = sources(root, own);
    demo::prepare(&mut sources);
    if own.get_flag("remove") {
        return match config::load(&sources) {
            Err(diagnostics) => report(&diagnostics),
            Ok(loaded) => demo::remove(&loaded.config),
        };
    }
    let is_quiet = root.get_flag("quiet") || own.get_flag("quiet");
    serve_from(&sources, is_quiet, Some(Box::new(Demo::default())))
}

fn run_check(root: &ArgMatches, own: &ArgMatches) -> ExitCode {
    let sources = sources(root, own);
    match config::load(&sources) {
        Err(diagnostics) => report(&diagnostics),
        Ok(loaded) => {
            let problems = config::paths::unusable_paths(&loaded.config);
            match problems.is_empty() {
                true => print(&check_report(&loaded, &sources)),
                false => fail(EXIT_FAILURE, &problems.join("\n")),
            }
        }
    }
}

fn run_config(root: &ArgMatches, config: &ArgMatches) -> ExitCode {
    match config.subcommand() {
        Some(("reference", _)) => print(&config::reference::reference()),
        Some(("example", _)) => print(&config::reference::example()),
        Some((_, own)) => match load(root, own) {
            Err(code) => code,
            Ok(loaded) => {
                let options = ShowOptions {
                    all: own.get_flag("all"),
                    origin: own.get_flag("origin"),
                };
                print(&show(&loaded.effective, options))
            }
        },
        None => unreachable!("clap requires a command"),
    }
}

fn run_completion(matches: &ArgMatches) -> ExitCode {
    let shell = *matches.get_one::<Shell>("shell").expect("clap requires it");
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "tidewire", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Options before and after the command's name count alike.
fn load(root: &ArgMatches, own: &ArgMatches) -> Result<LoadedConfig, ExitCode> {
    config::load(&sources(root, own)).map_err(|diagnostics| report(&diagnostics))
}

/// Returns `--data-dir`, or the directory of the configuration.
fn data_dir(root: &ArgMatches, own: &ArgMatches) -> Result<PathBuf, ExitCode> {
    match own.get_one::<PathBuf>("data-dir") {
        Some(path) => Ok(path.clone()),
        None => load(root, own).map(|loaded| loaded.config.data_dir),
    }
}

fn with_data_dir(root: &ArgMatches, own: &ArgMatches, run: impl FnOnce(&Path) -> ExitCode) -> ExitCode {
    match data_dir(root, own) {
        Ok(data_dir) => run(&data_dir),
        Err(code) => code,
    }
}

fn sources(root: &ArgMatches, own: &ArgMatches) -> ConfigSources {
    let file = own
        .get_one::<PathBuf>("config")
        .or_else(|| root.get_one("config"))
        .cloned();
    let mut set: Vec<String> = root.get_many("set").into_iter().flatten().cloned().collect();
    if !std::ptr::eq(root, own) {
        set.extend(own.get_many::<String>("set").into_iter().flatten().cloned());
    }
    let sources = ConfigSources::of_process(file, set);
    #[cfg(feature = "platform")]
    let sources = with_demo_users(sources, is_demo(root) || is_demo(own));
    sources
}

#[cfg(feature = "platform")]
fn with_demo_users(mut sources: ConfigSources, is_demo: bool) -> ConfigSources {
    if is_demo {
        demo::add_users(&mut sources);
    }
    sources
}

/// Most commands have no argument `--demo`.
#[cfg(feature = "platform")]
fn is_demo(matches: &ArgMatches) -> bool {
    matches!(matches.try_get_one::<bool>("demo"), Ok(Some(true)))
}

fn report(diagnostics: &[ConfigDiagnostic]) -> ExitCode {
    print_error(&listed(diagnostics));
    ExitCode::from(EXIT_USAGE)
}

fn check_report(loaded: &LoadedConfig, sources: &ConfigSources) -> String {
    let mut text = String::new();
    for (variable, right) in sources.misspelt_variables() {
        let _ = writeln!(text, "warning   {variable} is ignored; did you mean {right}?");
    }
    if loaded.files.is_empty() {
        text.push_str("no configuration file; defaults, environment and flags apply\n");
    }
    for file in &loaded.files {
        let _ = writeln!(text, "read      {}", file.display());
    }
    for listener in &loaded.config.listeners {
        let _ = writeln!(text, "listener  {:<16}{}", listener.label(), listener_report(listener));
    }
    let api = &loaded.config.api;
    if api.enabled {
        let scheme = match loaded.config.api_certificate() {
            Some(_) => "https",
            None => "http",
        };
        let _ = writeln!(text, "api       {:<16}{scheme}://{}", "", api.bind);
    }
    let declared = &loaded.declared;
    let (connectors, actions) = (declared.connectors.len(), declared.actions.len());
    let (sources, rules) = (declared.sources.len(), declared.rules.len());
    if connectors + actions + sources + rules > 0 {
        let _ = writeln!(
            text,
            "defines   connectors {connectors}, actions {actions}, sources {sources}, rules {rules}"
        );
    }
    let _ = writeln!(text, "data      {:<16}{}", "", loaded.config.data_dir.display());
    text.push_str("the configuration is valid\n");
    text
}

fn listener_report(listener: &Listener) -> String {
    let path = listener.ws.as_ref().map(|ws| ws.path.as_str()).unwrap_or_default();
    format!("{}://{}{path}", listener.kind.scheme(), listener.options.bind)
}
