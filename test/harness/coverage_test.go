package harness

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"nightporter/test/programs"
)

// covered says by which tests each requirement of the harness (REQUIREMENTS B1 to B24) and each attack is shown. Those in test/, and those
// whose names begin with TestReal or whose package has a rig of real agents, run the real Claude Code and both versions of Codex.
var covered = []struct{ what, tests string }{ // tests as package.Name, separated by spaces
	{"B1 commands, resolved once", "agent.TestSplitArgvRefusesWhatAShellWouldReadAndNamesIt agent.TestFindProgramSearchesTheRunsPathAndNamesIt harness.TestAProgramThatIsSwappedAfterTheProofGetsNoPrompt e2e.TestAMissingProgramIsToldWithWhatWasSearched"},
	{"B2 Claude's command", "claude.TestPrepareShapesTheCommand claude.TestCheckRefusesByName claude.TestRealFlagsThatStayKeepTheBoundary claude.TestRealHelpHoldsNoFlagThatTheTableLacks"},
	{"B3 Codex's command", "codex.TestARunCallsAGrantedToolAndReplies codex.TestNpmsScriptIsReplacedByTheNativeProgram codex.TestCommandsThatWouldDefeatTheBoundaryAreRefusedByName command.TestACommandRunsOnlyWhenTheOperatorAcceptsThatNothingIsProven"},
	{"B4 flags that change discovery", "codex.TestCommandsThatWouldDefeatTheBoundaryAreRefusedByName codex.TestAFlagThatTheVersionDoesNotKnowIsRefused codex.TestAnUnknownFlagStaysOnlyWhenItWasAllowedByName"},
	{"B5 tool modes", "claude.TestRealBypassRunsCommandsOnlyWhenAskedFor codex.TestBypassLetsACommandWriteAndGrantedDoesNot claude.TestRealRefusedCallIsADenial codex.TestToolsOfItsOwnThatAreOffAreDeniedWhenTheModelCallsThem"},
	{"B6 readers", "claude.TestRecordingsGiveTheirOutcome codex.TestRecordingsAreReadAsWhatTheyWere claude.FuzzDialogue codex.FuzzDialogue lines.TestMemoryIsBoundedOnAnEndlessLine claude.TestALineThatMayHaveBeenTheResultFailsTheRun codex.TestALineThatWasDroppedMayHaveBeenTheResult"},
	{"B7 session, activity, salvage", "e2e.TestARunThatIsKilledAtAnyMomentLosesNothing run.TestASessionIsInTheLedgerAsSoonAsItIsNamedAndIsResumed claude.TestOnlyTheAgentsOwnWordsAreActivityAndSalvage claude.TestRealStoppedRunKeepsSessionAndSalvageAndCanBeResumed"},
	{"B8 results and cost", "claude.TestResultsAreJudged claude.TestRealSessionIsResumedAndItsCostIsTheDifference codex.TestAnErrorEventIsNoEnd codex.TestASessionIsContinuedAndItsUsageIsTheRunsOwn"},
	{"B9 no result is a failure", "codex.TestOutputThatIsNoResultIsNeverTheReply claude.TestRealRefusedCredentialsEndTheRunAtOnce claude.TestRealModelFailures codex.TestTheModelsRefusalOfTheKeyIsTold"},
	{"B10 denials", "codex.TestRefusalsOfEveryVersionAreDenialsOfTheRealTool codex.TestAToolThatFailedIsNoDenial claude.TestDenialsAreInOrderWithoutRepeatsUnderTheirRealNames claude.TestRealRefusedCallIsADenial"},
	{"B11 the run's own server", "boundary.TestOnlyTheTokenOpensTheBoundary e2e.TestAToolThatComesAfterTheProofIsNotReached e2e.TestNoSecretOfARunIsWhereOthersRead boundary.TestClosedBoundaryLeavesNoProcess"},
	{"B12 extras", "config.TestExtrasComeUnderAndNeverOver e2e.TestAnExtraIsHandedToTheAgentItself e2e.TestAnExtraThatWouldDeceiveIsNeverReached"},
	{"B13 direct wiring", "codex.TestDirectServersAreHandedOverWithoutCredentialsOnTheCommandLine claude.TestRealDirectServersArePlannedVerifiedAndNamed e2e.TestAnExtraIsHandedToTheAgentItself"},
	{"B14 Codex's own servers", "codex.TestNothingOfTheSurroundingsReachesTheRun codex.TestAnAnswerThatIsNotUnderstoodIsNoEmptyList codex.TestRecordedListsAreReadAsWhatTheyWere codex.TestADirectServerOfACodexServersNameIsACollision"},
	{"B15 switches are verified", "codex.TestAServerThatCannotBeSwitchedOffStopsTheRun e2e.TestAServerThatCannotBeSwitchedOffCostsNoModelRequest codex.TestOnlyThePlannedListPasses"},
	{"B16 Codex's proof and its cache", "codex.TestAProofIsRememberedWhileNothingThatDecidesItChanges codex.TestWhatCodexLooksAtDecidesWhetherAProofIsRemembered codex.TestARunDoesNotTrustItsDirectoryByItself codex.TestAManagedConfigurationThatDefeatsASwitchIsNamed harness.BenchmarkOverhead"},
	{"B17 Claude's proof", "claude.TestRealBoundaryThatIsNotAsPlannedCostsNoModelRequest claude.TestRealProofAsksNothingOfTheModel claude.TestInitThatDiffersKillsTheRun claude.TestTheRecordedAnswerThatHoldsATokenIsConcealed"},
	{"B18 settings, hooks, plugins, skills, memory", "e2e.TestInAPollutedHomeARunReachesWhatIsGrantedAndNothingElse claude.TestRealWorkspaceAndUserSettingsChangeNothing e2e.TestAPluginThatAnAdministratorForcesOnIsNamedAndBringsNoServer"},
	{"B19 a prompt is data", "e2e.TestNothingInAStrangersPromptTakesEffect claude.TestRealPromptArrivesAsItWasWritten"},
	{"B20 prove", "e2e.TestInAPollutedHomeARunReachesWhatIsGrantedAndNothingElse run.TestARealAgentIsProvenWithoutTheModel"},
	{"B21 prompt, folder, environment", "e2e.TestNoSecretOfARunIsWhereOthersRead run.TestTheAgentsEnvironmentIsTheOperatorsLessOurSecrets run.TestThePrivateFolderIsGoneBeforeTheModelCouldReadIt"},
	{"B22 deadlines and the ladder", "e2e.TestADeadlineStopsTheRun e2e.TestAStoppedRunIsResumedByTheNextOfItsConversation run.TestARunOverItsBudgetIsStopped run.TestALiveRunBeatsAndTicks e2e.TestNothingThatAnAgentsShellStartedOutlivesTheRun"},
	{"B23 resume", "e2e.TestAConversationIsResumedUntilItsSessionIsDead claude.TestWordsOfAModelAreNotARejectedSession codex.TestOnlyTheExactWordsOfADeadSessionAreOne ledger.TestASessionBelongsToOneConversationAtATime run.TestRunsOfOneConversationFollowEachOther"},
	{"B24 transcripts", "run.TestOldTranscriptsMakeRoom run.TestConcealedLinesAreInNoTranscript run.TestNoSecretLeavesARun"},

	{"attack: @/etc/passwd, /config, !cmd, #note, $skill", "e2e.TestNothingInAStrangersPromptTakesEffect"},
	{"attack: 9 MB of text", "e2e.TestAPromptOfNineMegabytesIsRefusedByNameAndAsksNothing e2e.TestAPromptOverTheAgentsLimitLosesNothing"},
	{"attack: a workspace with everything in it", "e2e.TestInAPollutedHomeARunReachesWhatIsGrantedAndNothingElse"},
	{"attack: extras", "e2e.TestAnExtraThatWouldDeceiveIsNeverReached"},
	{"attack: a tool that comes after the proof", "e2e.TestAToolThatComesAfterTheProofIsNotReached gateway.TestToolsOfARunAreFrozen"},
	{"attack: a tool result that imitates a result", "e2e.TestAToolResultThatImitatesAnEventIsText"},
	{"attack: a program that is swapped", "harness.TestAProgramThatIsSwappedAfterTheProofGetsNoPrompt harness.TestAnAgentThatIsUpdatedDuringItsProofIsProvenAgain codex.TestAProgramOrSettingThatChangedAfterTheProofIsTold"},
	{"attack: a working directory that is swapped", "harness.TestAWorkingDirectoryThatIsSwappedIsNotWorkedIn harness.TestALinkToTheWorkingDirectoryThatIsTurnedIsFollowedOnce"},
	{"attack: killed at any moment", "e2e.TestARunThatIsKilledAtAnyMomentLosesNothing"},
}

func TestWhatIsSaidToBeTestedIs(t *testing.T) {
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	there := map[string]bool{} // package.Name, a package being called by its folder
	err := filepath.WalkDir(programs.Root(), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "node_modules" || entry.Name() == ".git"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		data, err := os.ReadFile(path)
		for _, found := range function.FindAllSubmatch(data, -1) {
			there[filepath.Base(filepath.Dir(path))+"."+string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range covered {
		for _, test := range strings.Fields(c.tests) {
			if !there[test] {
				t.Errorf("%s: there is no %s", c.what, test)
			}
		}
	}
	for i := range 24 { // B1 to B24
		if want := "B" + strconv.Itoa(i+1) + " "; !strings.HasPrefix(covered[i].what, want) {
			t.Errorf("row %d is %q, want %s", i, covered[i].what, want)
		}
	}
}
