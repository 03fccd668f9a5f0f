//! The name of a project, names that an import makes, and variables of a service.

use super::load::text_of;
use super::*;

#[test]
fn the_name_of_a_project_is_a_variable_of_its_files() {
    let of = |head: &str| {
        let text = format!(
            "{head}services:\n  a:\n    image: i\n    environment: {{N: $COMPOSE_PROJECT_NAME}}\n"
        );
        Case::new(&[("compose.yaml", &text)])
    };
    for (head, option, expected) in [
        ("", None, "shop"),
        ("name: written\n", None, "written"),
        ("name: Of-${X:-default}\n", None, "of-default"),
        ("name: written\n", Some("asked"), "asked"),
    ] {
        let mut case = of(head);
        case.options.project_name = option.map(str::to_owned);
        let imported = case.import();
        assert_eq!(lines(&imported), Vec::<String>::new());
        let text = text_of(&imported);
        assert_eq!(imported.project, expected);
        assert!(text.contains(&format!("value: {expected}\n")), "{text}");
    }
}

#[test]
fn a_file_of_variables_can_refer_to_those_of_its_service() {
    let mut case = Case::new(&[
        (
            "compose.yaml",
            "services:\n  a:\n    image: i\n    env_file: a.env\n    environment: {HOST: db, USER: own}\n",
        ),
        ("a.env", "URL=pg://${USER}@${HOST}/x\n"),
    ]);
    case.options.environment = [("USER".to_owned(), "outer".to_owned())].into();
    let imported = case.import();
    assert_eq!(lines(&imported), Vec::<String>::new());
    let text = text_of(&imported);
    assert!(text.contains("URL: pg://outer@db/x"), "{text}");
}

#[test]
fn a_file_can_refer_to_the_files_before_it_and_the_last_value_counts() {
    let mut case = Case::new(&[
        (
            "compose.yaml",
            "services:\n  a:\n    image: i\n    env_file: [a.env, {path: raw.env, format: raw}, b.env]\n    label_file: [a.labels, b.labels]\n",
        ),
        ("a.env", "USER=one\nHOST=db\nOUTER=file\n"),
        ("raw.env", "RAW=$r\n"),
        (
            "b.env",
            "USER=two\nHOST\nURL=pg://${USER}@${HOST}/${RAW}/${OUTER}\n",
        ),
        ("a.labels", "tier=one\nname=x\n"),
        ("b.labels", "tier=two\nboth=${name}-${tier}\n"),
    ]);
    case.options.environment = [("OUTER".to_owned(), "outer".to_owned())].into();
    let imported = case.import();
    assert_eq!(lines(&imported), Vec::<String>::new());
    let text = text_of(&imported);
    for piece in [
        "USER: two\n",
        "HOST: db\n",
        "URL: pg://two@db/$r/outer\n",
        "tier: two\n",
        // As in compose, the value of an earlier file is the one that is referred to.
        "both: x-one\n",
    ] {
        assert!(text.contains(piece), "{piece}\n{text}");
    }
    // Variables of the project are none of a file of labels.
    let case = Case::new(&[
        (
            "compose.yaml",
            "services:\n  a:\n    image: i\n    label_file: a.labels\n",
        ),
        (".env", "V=1\n"),
        ("a.labels", "l=a${V}b\n"),
    ]);
    let imported = case.import();
    assert!(text_of(&imported).contains("l: ab\n"), "{imported:#?}");
    let said = lines(&imported);
    let is_said = |line: &String| line.starts_with("a.labels:1:1: the variable V isn't set");
    assert!(said.iter().any(is_said), "{said:#?}");
}

#[test]
fn names_that_clash_get_a_number_or_an_error_with_its_line() {
    let case = Case::new(&[
        (
            "compose.yaml",
            "services:\n  a:\n    image: i\n    env_file: a.env\n    configs: [a-env]\n    volumes: ['a_b:/1', 'a-b:/2']\nconfigs: {a-env: {content: x}}\nvolumes: {a_b: , a-b: }\n",
        ),
        ("a.env", "A=1\n"),
    ]);
    let imported = case.import();
    assert!(!imported.has_errors(), "{:#?}", lines(&imported));
    let text = text_of(&imported);
    for piece in [
        "configMapRef:\n            name: a-env-2\n",
        "kind: ConfigMap\nmetadata:\n  name: a-env\n",
        "kind: ConfigMap\nmetadata:\n  name: a-env-2\n",
        "claimName: a-b\n",
        "claimName: a-b-2\n",
        "name: a-b\n  annotations:\n    mirrorlet.dev/volume-name: shop_a_b\n",
        "name: a-b-2\n  annotations:\n    mirrorlet.dev/volume-name: shop_a-b\n",
    ] {
        assert!(text.contains(piece), "{piece}\n{text}");
    }
    let text = "services:\n  a:\n    image: i\n    restart: 'no'\n    scale: 2\n  a-1:\n    image: i\n    restart: 'no'\n";
    let imported = Case::new(&[("compose.yaml", text)]).import();
    let problem = imported.problems.iter().find(|problem| problem.is_error());
    let problem = problem.unwrap();
    let line = "compose.yaml:6:3: services.a-1: the project would define Pod a-1 twice";
    assert!(problem.to_string().starts_with(line), "{problem}");
    assert_eq!(problem.help.as_deref(), Some("rename one of them"));
}
